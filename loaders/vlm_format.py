"""What a pack of the VLM recipe holds: the same shards, sidecars and manifest as `loaders.format`, other members.

    00000-00000000.json      VlmPackHeader
    00000-00000000.<array>.npy  in the order of VLM_ARRAY_DTYPES, arrays without elements left out

A pack's documents are already shifted (`input_ids[:-1]`, `labels[1:]`) and concatenated; `packing: none` stores one
unshifted sample. Document numbers and 1-D positions follow from `seq_lens` and are not stored. Pixels are stored as the
256-value tables of `pixel_tables` allow: uint8, and without the temporal half that repeats the first where it does;
otherwise float32 as the processor gave them. The round trip was verified bit for bit when the pack was written.

Field names and meanings follow nemo-automodel 0.7.0 `neat_packing_vlm` and `collate_fns`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from loaders.arrays import VLM_ARRAY_DTYPES
from loaders.format import FormatError, Provenance
from loaders.records import decode_record, parse_json

__all__ = ["LENGTHS_PATH", "VLM_ARRAY_DTYPES", "PixelTable", "VlmPackHeader", "VlmSettings", "parse_vlm_pack_header"]

LENGTHS_PATH = "plan/lengths.npy"
"""Of a bake with `order: length_grouped`: int32 [num_packs], the length that a pack's number is ordered by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PixelTable:
    """How stored uint8 columns become the processor's float32 columns (`DatasetManifest.settings["pixel_tables"]`).

    The processor gives rows of `channels x temporal x pixels` values, whatever the shape they are in: Qwen's patches
    are [patches, channels * temporal * side * side], other processors' images [images, channels, height, width]
    (temporal 1). A stored byte b of channel k stands for the float32 `tables[k][b]`.

    Attributes:
        tables: Per channel, the float32 value of every byte, ascending (written so that it reads back exactly).
        temporal: Frames of a row.
        temporal_repeats: The frames of a row are equal (a still image): only the first is stored.
    """

    tables: tuple[tuple[float, ...], ...]
    temporal: int
    temporal_repeats: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class VlmPackHeader:
    """The `.json` member of a VLM pack.

    Attributes:
        num_tokens: Length of `input_ids`.
        seq_lens: Tokens of each document.
        seq_lens_padded: The same rounded up to the alignment (equal where there is none); arrays hold the padded form.
        n_images: Images of the pack.
        n_videos: Videos of the pack.
        document_numbers_masked: (first token, token count) runs of injected fake images, whose document number is 0.
        number: Number of the pack in the planner's order.
        provenance: Where each document comes from.
        extra: Further facts per document, one dict each or none at all: "instead_of" is the data-set row whose place a
            replacement takes (absent: it is there in its own right), all else is for people.
    """

    num_tokens: int
    seq_lens: tuple[int, ...]
    seq_lens_padded: tuple[int, ...]
    n_images: int = 0
    n_videos: int = 0
    document_numbers_masked: tuple[tuple[int, int], ...] = ()
    number: int = 0
    provenance: tuple[Provenance, ...] = ()
    extra: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class VlmSettings:
    """`DatasetManifest.settings` of a VLM bake: what a loader needs beside the shards.

    Packs have a number in the planner's order, 0 … num_packs - 1, and a place: lane and pack in it. Places follow epoch
    0's order. With `rule` the `vlm_order.OrderRule` of these settings and W = `DatasetManifest.world_size`, the pack at
    canonical position p < num_packs (lane p % W, pack p // W) is number `epoch_order(rule, num_packs, W, epoch=0)[p]`.
    So epoch 0 of W ranks reads straight through; any other epoch computes its order of numbers and finds their places
    by the inverse permutation. Where `shard_data` is set every lane is a data set of its own, numbered on from the
    lanes before it, and ordered alone (`epoch_order(rule, packs of the lane, 1, …)`).

    Attributes:
        packing: Packs hold several documents, or ("none") one unshifted sample each.
        packing_format: Collated form of packs.
        mask: Of `neat` batches: bool [B, 1, S, S], or document numbers.
        order: Rule of an epoch's order (`loaders.vlm_order`).
        shuffle: Of order "distributed".
        order_seed: Seed of the order, to which the epoch is added.
        shard_data: Each lane is one rank's own data set.
        num_packs: Packs of all lanes.
        local_batch_size: Packs (or samples) of one batch of one rank.
        pad_token_id: Fills up `input_ids`.
        pack_size: Budget of a pack in shifted tokens, None where packing is "none".
        max_length: Longest sample before the shift, None for no limit.
        collate_max_length: Common length of all batches, None for the longest pack's.
        cp_size: Context-parallel ranks; documents are aligned to 2 * cp_size in `thd`.
        lengths: Path of the lengths inside the bake where the order needs them, else "".
        pixel_tables: "pixel_values" and "pixel_values_videos" → table; one that is absent is stored as float32.
        shard_bytes: Bound of a shard's estimated bytes.
        on_bad_row: What was done about rows that cannot be used.
        truncation: How over-long rows were cut.
        inject_fake_images: Whether rows without media have a white picture.
        corrections: What was decoded better than the reference does.
        processor: Class name of the processor.
        mrope: Packs hold positions [3, n].
        drop_last: Leave out a rank's last, shorter batch.
    """

    packing: Literal["neat", "best_fit", "none"]
    packing_format: Literal["neat", "thd"]
    mask: Literal["dense", "document"]
    order: Literal["distributed", "length_grouped", "shuffled", "sequential"]
    shuffle: bool
    order_seed: int
    shard_data: bool
    num_packs: int
    local_batch_size: int
    pad_token_id: int
    pack_size: int | None
    max_length: int | None
    collate_max_length: int | None
    cp_size: int
    lengths: str
    pixel_tables: dict[str, PixelTable]
    shard_bytes: int
    on_bad_row: str
    truncation: str
    inject_fake_images: bool
    corrections: tuple[str, ...]
    processor: str
    mrope: bool
    drop_last: bool = False

    def to_settings(self) -> dict[str, Any]:
        """As `DatasetManifest.settings` holds them."""
        return dataclasses.asdict(self)

    @staticmethod
    def of(settings: Mapping[str, Any], where: str = "dataset.json") -> VlmSettings:
        """The settings of a VLM bake's manifest.

        Raises:
            FormatError: a key is missing, unknown or of another type.
        """
        read: VlmSettings = decode_record(VlmSettings, dict(settings), f"{where}: settings")
        return read


def parse_vlm_pack_header(content: bytes, where: str = "pack header") -> VlmPackHeader:
    """The `.json` member of a VLM pack. `where` is what messages call it.

    Raises:
        FormatError: not a header of a VLM pack, or its lists disagree.
    """
    header: VlmPackHeader = decode_record(VlmPackHeader, parse_json(content, where), where)
    consistent = (
        len(header.seq_lens) == len(header.seq_lens_padded) == len(header.provenance)
        and all(0 <= real <= padded for real, padded in zip(header.seq_lens, header.seq_lens_padded, strict=True))
        and sum(header.seq_lens_padded) == header.num_tokens
        and all(first >= 0 and first + count <= header.num_tokens for first, count in header.document_numbers_masked)
    )
    if not consistent:
        raise FormatError(
            f"{where}: document lengths, provenance and token count do not agree with each other; the pack cannot be "
            f"rebuilt; it is damaged, render its shard again."
        )
    return header
