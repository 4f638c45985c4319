"""Law 6, of one shard, and laws 1 to 4 of its packs: every byte is read, once in order and once as the loader does."""

from __future__ import annotations

import hashlib
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from loaders.errors import LoaderError
from loaders.format import Sidecar, pack_key
from loaders.reader import BakeReader
from pipeline.bake import BakeFolder
from pipeline.law_report import Violation
from pipeline.storage import Storage
from pipeline.validate.checks import RecipeChecks
from pipeline.validate.findings import ShardFindings

__all__ = ["ShardUnit", "check_shard"]

_CHUNK_BYTES = 8 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardUnit:
    """One shard to check. Picklable."""

    reader: BakeReader
    folder: BakeFolder
    storage: Storage
    checks: RecipeChecks
    lane: int
    shard: int


def check_shard(unit: ShardUnit) -> ShardFindings:
    """Read one shard twice, byte by byte and pack by pack. Damage is a finding, never an exception."""
    findings = ShardFindings(lane=unit.lane)
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
    findings.report(unit.checks.violations(key, stored))
    unit.checks.count(findings, stored)


def _compare_tokens(unit: ShardUnit, findings: ShardFindings, sidecar: Sidecar) -> None:
    found = {name: findings.tokens[name] for name in sidecar.tokens}
    if len(findings.lengths) == sidecar.num_packs and found != sidecar.tokens:
        findings.report([_law_6(unit, f"its packs hold the tokens {found}, its sidecar says {sidecar.tokens}")])
