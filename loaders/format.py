"""The shard format, version 1: the contract between the writer (`pipeline.render`) and every reader.

    <bake>/dataset.json                      DatasetManifest   written last; the entry point
    <bake>/shards/lane-00000/000000.tar      packs, as one WebDataset sample each
    <bake>/shards/lane-00000/000000.json     Sidecar           the tar's commit mark

A pack is the tar members `00000-00000000.json` (PackHeader), then `00000-00000000.<array>.npy` for each array it has,
in the order of ARRAY_DTYPES (absent modality: no member), then `…vit_000.webp`, `…vae_000.webp`, … where pixels are
stored as WebP. Tar bytes are deterministic: ustar, mtime 0, uid/gid 0, no names, mode 0644. NPY format 1.0, C order,
little endian. No pickle anywhere.

An array without elements has no member: an absent modality is absent, and so is, say, `mse_loss_indexes` of a pack
whose VAE images are all conditions. A reader takes a missing array as empty.

Field names, dtypes and meanings follow nemo-automodel 0.7.0 `SimpleCustomBatch`; see `loaders.batch`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any

from loaders.arrays import ARRAY_DTYPES, STORED_ARRAYS
from loaders.errors import FormatError, ManifestDamaged
from loaders.records import decode_record, parse_json

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = [
    "ARRAY_DTYPES",
    "ATTENTION_MODES",
    "FORMAT_VERSION",
    "VAE_FIELDS",
    "VIT_FIELDS",
    "DatasetManifest",
    "Drop",
    "FormatError",
    "LaneEntry",
    "MemberEntry",
    "Normalisation",
    "PackEntry",
    "PackHeader",
    "Provenance",
    "ShardEntry",
    "Sidecar",
    "member_name",
    "pack_key",
    "parse_dataset_manifest",
    "parse_pack_header",
    "parse_sidecar",
    "picture_name",
    "sealed",
    "shard_path",
    "sidecar_path",
]

FORMAT_VERSION = 1

ATTENTION_MODES = ("causal", "full", "noise")

VIT_FIELDS = frozenset({"vit_pixels", "packed_vit_position_ids", "packed_vit_token_indexes", "vit_token_seqlens"})
VAE_FIELDS = frozenset(
    {"vae_pixels", "packed_latent_position_ids", "packed_vae_token_indexes", "packed_timesteps", "mse_loss_indexes"}
)


def pack_key(lane: int, pack: int) -> str:
    """WebDataset key of pack `pack` of lane `lane`: `00000-00000000`."""
    return f"{lane:05d}-{pack:08d}"


def member_name(key: str, array: str) -> str:
    """Tar member that holds an array of a pack."""
    return f"{key}.{array}.npy"


def picture_name(key: str, tower: str, number: int) -> str:
    """Tar member of a picture stored as lossless WebP; `tower` is "vit" or "vae"."""
    return f"{key}.{tower}_{number:03d}.webp"


def shard_path(lane: int, shard: int) -> str:
    """Path of a tar inside the bake."""
    return f"shards/lane-{lane:05d}/{shard:06d}.tar"


def sidecar_path(lane: int, shard: int) -> str:
    """Path of its sidecar inside the bake."""
    return f"shards/lane-{lane:05d}/{shard:06d}.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """The source row behind one sample of a pack: source name, path relative to the source's root, row in the file."""

    source: str
    path: str
    row: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PackHeader:
    """The `.json` member of a pack: scalars and short lists.

    Attributes:
        sequence_length: Tokens of the pack, unpadded.
        sample_lens: Tokens of each sample, without the pad entry that `use_flex` appends. 0: all items dropped.
        split_lens: Tokens of each split of all samples, without the pad split.
        attn_modes: Mode of each split: "causal", "full" or "noise".
        vit_image_sizes: (height, width) in pixels of each ViT image of the batch.
        vit_normalisation: Per ViT image, number of its mean/std in `DatasetManifest.normalisations`.
        vae_image_sizes: (height, width) in pixels of each *stored* VAE picture.
        vae_image_index: Per VAE image of the batch, number of the stored picture.
        vae_normalisation: Per *stored* VAE picture, number of its mean/std.
        patchified_vae_latent_shapes: (rows, columns) of the latent grid of each VAE image of the batch.
        batch_data_indexes: The reference's entry per sample.
        provenance: Where each sample comes from; same length as `batch_data_indexes`.
    """

    sequence_length: int
    sample_lens: tuple[int, ...]
    split_lens: tuple[int, ...]
    attn_modes: tuple[str, ...]
    vit_image_sizes: tuple[tuple[int, int], ...] = ()
    vit_normalisation: tuple[int, ...] = ()
    vae_image_sizes: tuple[tuple[int, int], ...] = ()
    vae_image_index: tuple[int, ...] = ()
    vae_normalisation: tuple[int, ...] = ()
    patchified_vae_latent_shapes: tuple[tuple[int, int], ...] = ()
    batch_data_indexes: tuple[dict[str, Any], ...] = ()
    provenance: tuple[Provenance, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberEntry:
    """Where one member's payload lies in the tar.

    Attributes:
        offset: Byte offset of the member's first payload byte (for arrays: of the NPY header).
        num_bytes: Payload bytes (for arrays: header and data).
        crc32: CRC-32 (zlib) of the payload.
        dtype: NumPy dtype string of an array, "" for JSON and WebP.
        shape: Shape of an array, () otherwise.
        data_offset: Byte offset of an array's first element, a multiple of 64; equals `offset` otherwise.
    """

    offset: int
    num_bytes: int
    crc32: int
    dtype: str = ""
    shape: tuple[int, ...] = ()
    data_offset: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class PackEntry:
    """One pack of a shard: its key and its members by short name ("json", an array's name, "vit_000", "vae_000")."""

    key: str
    members: dict[str, MemberEntry]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """A sample that render had to remove from a pack: pack number in the lane, the source row, and the reason."""

    pack: int
    source: str
    path: str
    row: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sidecar:
    """The commit mark of a shard: present means the tar beside it is complete.

    `fingerprint` covers the plan rows and the settings the shard was rendered from; equal fingerprint, equal bytes.
    `stream`, `pixels` and `shard_bytes` say which bake the shard belongs to, so that another one is refused.
    """

    lane: int
    shard: int
    first_pack: int
    num_packs: int
    num_bytes: int
    sha256: str
    fingerprint: str
    packs: tuple[PackEntry, ...]
    drops: tuple[Drop, ...] = ()
    tokens: dict[str, int] = field(default_factory=dict)  # "total", "text", "vit", "vae" really written
    stream: str = ""
    pixels: str = "raw"
    shard_bytes: int = 0
    format: int = FORMAT_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardEntry:
    """A shard as `dataset.json` lists it."""

    num_packs: int
    num_bytes: int
    sha256: str
    sidecar_sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneEntry:
    """A lane: its shards in order."""

    shards: tuple[ShardEntry, ...]

    @property
    def num_packs(self) -> int:
        """Packs of the lane."""
        return sum(shard.num_packs for shard in self.shards)


@dataclass(frozen=True, slots=True, kw_only=True)
class Normalisation:
    """Mean and standard deviation per channel, applied to pixels scaled to [0, 1]."""

    mean: tuple[float, float, float]
    std: tuple[float, float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetManifest:
    """`dataset.json`.

    Attributes:
        recipe: Kind of recipe, "bagel" or "vlm" (then `settings` are a `vlm_format.VlmSettings`, and what only BAGEL
            has is 0, empty or False).
        stream: Fingerprint of configuration (without length), tokenizer and ordered inputs.
        fingerprints: "config", "tokenizer", "plan".
        world_size: Ranks the lanes were laid out for.
        num_workers: Workers a rank the lanes were laid out for (0 and 1 both give one lane a rank).
        lanes: Every lane's shards.
        use_flex: Whether the recipe wants the pad split instead of dense masks.
        max_num_tokens: Budget; the pad split fills up to it.
        vit_patch_size: Side of a patch in pixels.
        vae_image_downsample: Side of a latent cell in pixels.
        pixels: "raw" or "webp".
        special_tokens: bos_token_id, eos_token_id, start_of_image, end_of_image.
        vocab_size: Token ids are below it.
        normalisations: Distinct mean/std pairs.
        tokens: Totals: "total", "text", "vit", "vae".
        rows: Accounting per source (promise 3): reason or fate → rows.
        seed: Base seed of the plan; epoch timesteps are redrawn from it.
        balance_window: Packs of the windows that were balanced, 0 if none.
        versions: Versions the pixels depend on.
        settings: Further facts of the recipe, for people.
        checksum: SHA-256 of everything else in it (see `sealed`); "" where it was left out.
    """

    recipe: str
    stream: str
    fingerprints: dict[str, str]
    world_size: int
    num_workers: int
    lanes: tuple[LaneEntry, ...]
    use_flex: bool
    max_num_tokens: int
    vit_patch_size: int
    vae_image_downsample: int
    pixels: str
    special_tokens: dict[str, int]
    vocab_size: int
    normalisations: tuple[Normalisation, ...]
    tokens: dict[str, int]
    rows: dict[str, Any]
    seed: int
    balance_window: int = 0
    versions: dict[str, str] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    format: int = FORMAT_VERSION
    checksum: str = ""


def sealed(manifest: DatasetManifest) -> DatasetManifest:
    """The manifest with its checksum: what no digest elsewhere covers (normalisation, budgets) is covered by it."""
    return dataclasses.replace(manifest, checksum=_checksum(json.loads(to_json(manifest))))


def _checksum(value: dict[str, Any]) -> str:
    """Of the values, not of their layout in the file."""
    content = {key: member for key, member in value.items() if key != "checksum"}
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode("ascii")).hexdigest()


def to_json(record: DataclassInstance, *, indent: int | None = None) -> bytes:
    """A record as deterministic JSON bytes (UTF-8; keys in field order)."""
    separators = (",", ":") if indent is None else (",", ": ")
    return json.dumps(
        dataclasses.asdict(record), ensure_ascii=False, allow_nan=False, indent=indent, separators=separators
    ).encode("utf-8")


def _parse(record: type, content: bytes, where: str) -> Any:
    """A versioned record; another format version is refused before anything else is looked at."""
    value = parse_json(content, where)
    version = value.get("format")
    if version != FORMAT_VERSION:
        raise FormatError(
            f"{where} has format {version!r}, this parbake reads format {FORMAT_VERSION}; its shards would be "
            f"misread; use the parbake version that wrote it, or bake again."
        )
    return decode_record(record, value, where)


def parse_pack_header(content: bytes, where: str = "pack header") -> PackHeader:
    """The `.json` member of a pack. `where` is what messages call it.

    Raises:
        FormatError: not a pack header, or lists that must have one length differ.
    """
    header: PackHeader = decode_record(PackHeader, parse_json(content, where), where)
    num_stored = len(header.vae_image_sizes)
    consistent = (
        len(header.split_lens) == len(header.attn_modes)
        and all(mode in ATTENTION_MODES for mode in header.attn_modes)
        and len(header.vit_image_sizes) == len(header.vit_normalisation)
        and num_stored == len(header.vae_normalisation)
        and all(0 <= number < num_stored for number in header.vae_image_index)
        and len(header.vae_image_index) == len(header.patchified_vae_latent_shapes)
        and min(header.split_lens, default=0) >= 0
        and min(header.sample_lens, default=0) >= 0
    )
    if not consistent:
        raise FormatError(
            f"{where}: splits, image sizes and image indexes do not agree with each other; the pack cannot be rebuilt; "
            f"it is damaged, render its shard again."
        )
    return header


def parse_sidecar(content: bytes, where: str = "sidecar") -> Sidecar:
    """A shard's sidecar; every byte range in it lies inside the shard, so that a reader may map it. `where`: its name.

    Raises:
        FormatError: not a sidecar of this format, or a member lies outside the shard or contradicts its own shape.
    """
    sidecar: Sidecar = _parse(Sidecar, content, where)
    if len(sidecar.packs) != sidecar.num_packs:
        raise FormatError(
            f"{where} lists {len(sidecar.packs)} packs and claims {sidecar.num_packs}; packs would be misnumbered; "
            f"it is damaged, render the shard again."
        )
    for pack in sidecar.packs:
        for name, member in pack.members.items():
            if not _member_is_sound(name, member, sidecar.num_bytes):
                raise FormatError(
                    f"{where}: member {name} of pack {pack.key} claims bytes {member.offset}+{member.num_bytes}, dtype "
                    f"{member.dtype!r}, shape {member.shape} in a shard of {sidecar.num_bytes} bytes; it cannot be "
                    f"read; the sidecar is damaged, render the shard again."
                )
    return sidecar


def _member_is_sound(name: str, member: MemberEntry, shard_bytes: int) -> bool:
    """Inside the shard; an array has its field's dtype and exactly the bytes that its shape needs."""
    inside = min(member.offset, member.num_bytes) >= 0 and member.offset + member.num_bytes <= shard_bytes
    if name not in STORED_ARRAYS:
        return inside and member.dtype == "" and member.shape == ()
    if member.dtype != STORED_ARRAYS[name] or any(extent < 0 for extent in member.shape):
        return False
    data_bytes = int(member.dtype[2:]) * prod(member.shape)
    return (
        inside
        and member.offset <= member.data_offset
        and (member.data_offset + data_bytes == member.offset + member.num_bytes)
    )


def parse_dataset_manifest(content: bytes, where: str = "dataset.json") -> DatasetManifest:
    """A bake's `dataset.json`. `where` is what messages call it.

    Raises:
        FormatError: not a manifest of this format.
        ManifestDamaged: it is one, and not the one that was written.
    """
    manifest: DatasetManifest = _parse(DatasetManifest, content, where)
    if manifest.checksum and _checksum(parse_json(content, where)) != manifest.checksum:
        raise ManifestDamaged(
            f"{where} is not as it was written, its checksum tells; what training takes from it (shards, "
            f"normalisation, budgets) may be wrong; copy it again, or remove it and run the bake again, which "
            f"writes it anew."
        )
    return manifest
