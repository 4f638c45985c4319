"""Law 6, of one shard, and laws 1 to 4 of its packs: every byte is read, once in order and once as the loader does."""

from __future__ import annotations

import hashlib
import tarfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO

from loaders.errors import LoaderError
from loaders.format import Drop, PackHeader, Sidecar, pack_key
from loaders.reader import BakeReader
from loaders.shard import StoredPack
from pipeline.bake import BakeFolder
from pipeline.law_report import MAX_EXAMPLES, Violation
from pipeline.storage import Storage
from pipeline.validate.packs import PackLimits, pack_violations

__all__ = ["ShardFindings", "ShardUnit", "check_shard"]

_CHUNK_BYTES = 8 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardUnit:
    """One shard to check. Picklable."""

    reader: BakeReader
    folder: BakeFolder
    storage: Storage
    limits: PackLimits
    lane: int
    shard: int


@dataclass(slots=True, kw_only=True)
class ShardFindings:
    """What one shard holds and what is wrong with it.

    `broken` counts packs (laws 1 to 4) or the shard (law 6) by law; `violations` are the first few of each.
    """

    num_packs: int = 0
    num_bytes: int = 0
    broken: Counter[int] = field(default_factory=Counter)
    violations: list[Violation] = field(default_factory=list)
    tokens: Counter[str] = field(default_factory=Counter)
    images: Counter[str] = field(default_factory=Counter)
    counted: Counter[str] = field(default_factory=Counter)
    group_samples: Counter[str] = field(default_factory=Counter)
    group_tokens: Counter[str] = field(default_factory=Counter)
    group_empty: Counter[str] = field(default_factory=Counter)
    source_rows: Counter[str] = field(default_factory=Counter)
    lengths: list[int] = field(default_factory=list)
    drops: tuple[Drop, ...] = ()

    def report(self, violations: list[Violation]) -> None:
        """Count the laws that one pack, or the shard, breaks."""
        for law in {violation.law for violation in violations}:
            if self.broken[law] < MAX_EXAMPLES:
                self.violations += [violation for violation in violations if violation.law == law][:2]
            self.broken[law] += 1


def check_shard(unit: ShardUnit) -> ShardFindings:
    """Read one shard twice, byte by byte and pack by pack. Damage is a finding, never an exception."""
    findings = ShardFindings()
    name = unit.folder.shard(unit.lane, unit.shard)
    entry = unit.reader.manifest.lanes[unit.lane].shards[unit.shard]
    findings.num_packs, findings.num_bytes = entry.num_packs, entry.num_bytes
    try:
        sidecar = unit.reader.sidecar(unit.lane, unit.shard)
    except LoaderError as error:
        findings.report([_law_6(unit, _first_clause(error))])
        return findings
    findings.drops = sidecar.drops
    complaints = list(_byte_complaints(unit, sidecar, name))
    findings.report([_law_6(unit, complaint) for complaint in complaints])
    for index in range(entry.num_packs):
        _check_pack(unit, findings, sidecar.first_pack + index)
    _compare_tokens(unit, findings, sidecar)
    return findings


def _first_clause(error: LoaderError) -> str:
    """What is wrong; why it matters and what to do is said once, for the whole bake."""
    return str(error).partition("; ")[0]


def _law_6(unit: ShardUnit, complaint: str) -> Violation:
    return Violation(law=6, subject=f"shard {unit.lane:05d}/{unit.shard:06d}", complaint=complaint)


def _byte_complaints(unit: ShardUnit, sidecar: Sidecar, name: str) -> Iterator[str]:
    digest = hashlib.sha256()
    num_bytes = 0
    try:
        with unit.storage.open(name) as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
                num_bytes += len(chunk)
            if (num_bytes, digest.hexdigest()) != (sidecar.num_bytes, sidecar.sha256):
                yield f"its {num_bytes} bytes have SHA-256 {digest.hexdigest()}, its sidecar says {sidecar.sha256}"
            file.seek(0)
            yield from _tar_complaints(file, sidecar)
    except FileNotFoundError:
        yield "the tar is missing"
    except tarfile.TarError as error:
        yield f"it is no readable tar ({error})"


def _tar_complaints(file: BinaryIO, sidecar: Sidecar) -> Iterator[str]:
    """Any tar reader sees the members that the sidecar lists, where it lists them, without owner, time or host."""
    listed = [
        (f"{pack.key}.{_file_name(short)}", member.offset, member.num_bytes)
        for pack in sidecar.packs
        for short, member in pack.members.items()
    ]
    with tarfile.open(fileobj=file, mode="r:") as tar:
        members = tar.getmembers()
    found = [(member.name, member.offset_data, member.size) for member in members]
    if found != listed:
        yield f"its {len(found)} members are not the {len(listed)} that its sidecar lists, in place and order"
    if any((m.mtime, m.uid, m.gid, m.uname, m.gname, m.mode) != (0, 0, 0, "", "", 0o644) for m in members):
        yield "a tar header names a time, an owner or another mode: its bytes depend on where they were made"


def _file_name(short: str) -> str:
    if short == "json":
        return "json"
    return f"{short}.webp" if short[:4] in ("vit_", "vae_") and short[4:].isdigit() else f"{short}.npy"


def _check_pack(unit: ShardUnit, findings: ShardFindings, number: int) -> None:
    key = pack_key(unit.lane, number)
    try:
        stored = unit.reader.read(unit.lane, number)
    except LoaderError as error:
        findings.report([Violation(law=6, subject=f"pack {key}", complaint=_first_clause(error))])
        return
    arrays = {name: array.numpy() for name, array in stored.arrays.items()}
    findings.report(pack_violations(key, stored.header, arrays, unit.limits))
    _count(unit, findings, stored)


def _count(unit: ShardUnit, findings: ShardFindings, stored: StoredPack[PackHeader]) -> None:
    header, limits = stored.header, unit.limits
    findings.lengths.append(header.sequence_length)
    findings.tokens["total"] += header.sequence_length
    for kind, name in (
        ("text", "packed_text_indexes"),
        ("vit", "packed_vit_token_indexes"),
        ("vae", "packed_vae_token_indexes"),
    ):
        findings.tokens[kind] += stored.arrays[name].numel() if name in stored.arrays else 0
    findings.images.update(
        vit=len(header.vit_image_sizes), vae=len(header.vae_image_index), vae_stored=len(header.vae_image_sizes)
    )
    findings.counted["packs_above_max_num_tokens"] += header.sequence_length > limits.max_num_tokens
    if limits.max_num_tokens_per_sample:
        findings.counted["samples_above_max_num_tokens_per_sample"] += sum(
            length > limits.max_num_tokens_per_sample for length in header.sample_lens
        )
    for length, indexes, origin in zip(header.sample_lens, header.batch_data_indexes, header.provenance, strict=False):
        group = str(indexes.get("dataset_name", ""))
        findings.group_samples[group] += 1
        findings.group_tokens[group] += length
        findings.group_empty[group] += length == 0
        findings.source_rows[origin.source] += 1


def _compare_tokens(unit: ShardUnit, findings: ShardFindings, sidecar: Sidecar) -> None:
    found = {name: findings.tokens[name] for name in sidecar.tokens}
    if len(findings.lengths) == sidecar.num_packs and found != sidecar.tokens:
        findings.report([_law_6(unit, f"its packs hold the tokens {found}, its sidecar says {sidecar.tokens}")])
