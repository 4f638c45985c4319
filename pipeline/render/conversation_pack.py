"""One pack of the VLM recipe: planned rows through the processor, cut, shifted, laid end to end.

    row ──media──► processor ──cut──► positions ──shift──► document      ids[:-1] predict labels[1:]
                                                             │
    [doc 1 ........ pad][doc 2 ...... pad][doc 3 .]   ◄──────┘           pad: up to 2 · cp_size where THD asks for it

`packing: none` stores the one sample as it is, cut but not shifted; padding and shift come at load. Source of the
rules: nemo-automodel 0.7.0 `vlm.datasets.PreTokenizedDatasetWrapper`, `vlm.neat_packing_vlm._shift_sample` and
`_build_packed_vlm_sample`.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import jinja2
import numpy as np
from numpy.typing import NDArray

from loaders.format import Drop, Provenance
from loaders.vlm_format import PixelTable, VlmPackHeader
from pipeline.errors import RunFailed, SourceError
from pipeline.media.faults import ImageFault
from pipeline.processor import IGNORE_INDEX, EncodedSample, VlmProcessor
from pipeline.records import RowId
from pipeline.render.fake_image import runs
from pipeline.render.mrope import RopeIndex, positions
from pipeline.render.pixel_table import encode_pixels
from pipeline.sources.conversations.reader import RowMedia
from pipeline.vlm_records import ConversationPack, ConversationRow, ConversationSample, Medium

__all__ = ["TOKEN_KINDS", "ConversationRules", "RenderedConversationPack", "RowReader", "render_conversation_pack"]

TOKEN_KINDS = ("total", "text", "media", "label", "patches", "float32_patches")
"""Counts of a VLM bake: tokens in all, of text and of media; tokens with loss; rows of pixels, and those of them that
no byte table holds."""

PIXEL_KEYS = ("pixel_values", "pixel_values_videos")
GRID_KEYS = ("image_grid_thw", "video_grid_thw")

PROCESSOR_ERRORS = (ValueError, TypeError, KeyError, IndexError, AttributeError, jinja2.TemplateError)
"""What a template or processor raises of a conversation that it does not take."""


class RowReader(Protocol):
    """Reads the media of rows; `ConversationMedia` is one."""

    def read(self, source: str, media: Sequence[Medium]) -> RowMedia:
        """The media of one row.

        Raises:
            ImageFault: one of them cannot be decoded.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationRules:
    """What a pack's bytes depend on beside the plan, the index and the media.

    Attributes:
        shifted: Documents are shifted and laid end to end; else (packing none) the sample is stored as it is.
        alignment: Documents take a multiple of this many tokens.
        masks_fakes: Tokens of fake pictures get document number 0 (the reference forgets it).
        pixel_tables: Of pixel values by key.
        vision_token_ids: Ids of pictures and their marks.
    """

    shifted: bool
    alignment: int
    masks_fakes: bool
    pixel_tables: Mapping[str, PixelTable]
    vision_token_ids: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedConversationPack:
    """See `unit.MadePack`."""

    header: VlmPackHeader
    arrays: dict[str, NDArray[np.generic]]
    pictures: dict[str, bytes]
    tokens: dict[str, int]
    drops: tuple[Drop, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Document:
    """One sample, ready to be laid down.

    Attributes:
        sample: The planned sample.
        input_ids: int64 [n].
        labels: int64 [n].
        types: int64 [n], or None if the processor gives none.
        attended: bool [n], False at the tokens of a fake picture.
        positions: int32 [3, n], or None with plain positions.
        media: The processor's tensors as arrays.
    """

    sample: ConversationSample
    input_ids: NDArray[np.int64]
    labels: NDArray[np.int64]
    types: NDArray[np.int64] | None
    attended: NDArray[np.bool_]
    positions: NDArray[np.int32] | None
    media: dict[str, NDArray[np.generic]]


def render_conversation_pack(
    pack: ConversationPack,
    rows: Mapping[RowId, ConversationRow],
    reader: RowReader,
    processor: VlmProcessor,
    get_rope_index: RopeIndex | None,
    rules: ConversationRules,
) -> RenderedConversationPack:
    """Make a pack.

    Args:
        pack: As planned.
        rows: Index rows of its samples, with conversation and media.
        reader: Reads media.
        processor: Of the recipe.
        get_rope_index: The model's position rule, None for plain positions.
        rules: Everything else.

    Raises:
        RunFailed: a sample is longer or shorter than the plan says.
        SourceError: no sample is left.
    """
    documents: list[_Document] = []
    drops: list[Drop] = []
    for sample in pack.samples:
        try:
            documents.append(_document(sample, rows[sample.row], reader, processor, get_rope_index, rules))
        except ImageFault as fault:
            drops.append(_drop(pack, sample, fault.reason))
        except PROCESSOR_ERRORS:
            drops.append(_drop(pack, sample, "processor_error"))
    if not documents:
        reasons = ", ".join(sorted({drop.reason for drop in drops}))
        raise SourceError(
            f"pack {pack.pack} of lane {pack.lane} has no sample left ({reasons}); a step would train on nothing. "
            "Mend the rows, or use check_images: decode, which finds such rows before they are packed."
        )
    return _laid_out(pack, documents, tuple(drops), processor.pad_token_id, rules)


def _drop(pack: ConversationPack, sample: ConversationSample, reason: str) -> Drop:
    row = sample.row
    return Drop(pack=pack.pack, source=row.source, path=row.path, row=row.row, reason=reason)


def _document(
    sample: ConversationSample,
    row: ConversationRow,
    reader: RowReader,
    processor: VlmProcessor,
    get_rope_index: RopeIndex | None,
    rules: ConversationRules,
) -> _Document:
    media = reader.read(sample.row.source, row.media)
    encoded = processor.encode(
        json.loads(row.conversation),
        media.images,
        [video.frames for video in media.videos],
        [video.metadata for video in media.videos],
    )
    _refuse_other_length(sample, encoded)
    kept = slice(0, sample.keep_tokens)
    ids, labels = encoded.input_ids[kept], encoded.labels[kept]
    types = None if encoded.mm_token_type_ids is None else encoded.mm_token_type_ids[kept]
    attended = np.ones(len(ids), dtype=bool)
    if any(medium.origin == "fake" for medium in row.media):
        attended = ~np.isin(ids, rules.vision_token_ids)
    found = None
    if rules.shifted and get_rope_index is not None:
        found = positions(get_rope_index, ids, types, encoded.media, attended)
    end = len(ids) - 1 if rules.shifted else len(ids)
    return _Document(
        sample=sample,
        input_ids=ids[:end],
        labels=labels[1:] if rules.shifted else labels,
        types=None if types is None else types[:end],
        attended=attended[:end],
        positions=None if found is None else found[:, :end],
        media={key: np.asarray(value) for key, value in encoded.media.items()},
    )


def _refuse_other_length(sample: ConversationSample, encoded: EncodedSample) -> None:
    if len(encoded.input_ids) != sample.num_tokens:
        row = sample.row
        raise RunFailed(
            f"{row.source}: {row.path} row {row.row} was planned with {sample.num_tokens} tokens, and the processor "
            f"gives {len(encoded.input_ids)}. Its pack would be another one than planned. A picture or the processor "
            "changed: run `parbake index` and `parbake plan` again."
        )


def _laid_out(
    pack: ConversationPack,
    documents: Sequence[_Document],
    drops: tuple[Drop, ...],
    pad_token_id: int,
    rules: ConversationRules,
) -> RenderedConversationPack:
    lengths = [len(document.input_ids) for document in documents]
    padded = [-(-length // rules.alignment) * rules.alignment for length in lengths]
    attended = _joined([document.attended for document in documents], padded, fill=1)
    arrays: dict[str, NDArray[np.generic]] = {
        "input_ids": _joined([document.input_ids for document in documents], padded, fill=pad_token_id).astype("<i4"),
        "labels": _joined([document.labels for document in documents], padded, fill=IGNORE_INDEX).astype("<i4"),
    }
    if not rules.shifted and not attended.all():
        arrays["attention_mask"] = attended.astype("|u1")
    found = [document.positions for document in documents if document.positions is not None]
    if found:
        arrays["position_ids"] = np.concatenate(found, axis=1).astype("<i4")
    types = [document.types for document in documents if document.types is not None]
    if len(types) == len(documents):  # the processor gives them, or it does not
        arrays["mm_token_type_ids"] = _joined(types, padded, fill=0).astype("|u1")
    num_media = sum(int((values > 0).sum()) for values in types)
    media, counts = _media_arrays(documents, rules.pixel_tables)
    return RenderedConversationPack(
        header=VlmPackHeader(
            num_tokens=sum(padded),
            seq_lens=tuple(lengths),
            seq_lens_padded=tuple(padded),
            n_images=len(media.get("image_grid_thw", ())),
            n_videos=len(media.get("video_grid_thw", ())),
            document_numbers_masked=runs(~attended) if rules.shifted and rules.masks_fakes else (),
            number=pack.number,
            provenance=tuple(
                Provenance(source=row.source, path=row.path, row=row.row)
                for row in (document.sample.row for document in documents)
            ),
            extra=tuple(_extra(document.sample) for document in documents),
        ),
        arrays=arrays | media,
        pictures={},
        tokens={
            "total": sum(lengths),
            "text": sum(lengths) - num_media,
            "media": num_media,
            "label": int((arrays["labels"] != IGNORE_INDEX).sum()),
            **counts,
        },
        drops=drops,
    )


def _extra(sample: ConversationSample) -> dict[str, Any]:
    facts: dict[str, Any] = {"dataset_row": sample.dataset_row}
    if sample.instead_of >= 0:
        facts["instead_of"] = sample.instead_of
    if sample.keep_tokens < sample.num_tokens:
        facts["cut_from"] = sample.num_tokens
    return facts


def _joined(parts: Sequence[NDArray[Any]], padded: Sequence[int], *, fill: int) -> NDArray[Any]:
    """The parts one after another, each filled up to its padded length."""
    joined = np.full(sum(padded), fill, dtype=parts[0].dtype)
    start = 0
    for part, length in zip(parts, padded, strict=True):
        joined[start : start + len(part)] = part
        start += length
    return joined


def _media_arrays(
    documents: Sequence[_Document], tables: Mapping[str, PixelTable]
) -> tuple[dict[str, NDArray[np.generic]], dict[str, int]]:
    """Media of all documents, pixels as bytes where their table holds them; and how many rows it did not hold."""
    parts: defaultdict[str, list[NDArray[np.generic]]] = defaultdict(list)
    for document in documents:
        for key, value in document.media.items():
            parts[key].append(value)
    joined = {key: np.concatenate(values) for key, values in parts.items()}
    arrays: dict[str, NDArray[np.generic]] = {
        key: value.astype("<i4") for key, value in joined.items() if key in GRID_KEYS
    }
    if "second_per_grid_ts" in joined:
        arrays["second_per_grid_ts"] = joined["second_per_grid_ts"].astype("<f4")
    counts = {"patches": 0, "float32_patches": 0}
    for key in PIXEL_KEYS:
        if key not in joined:
            continue
        values = joined[key].astype("<f4")
        stored = encode_pixels(values, tables[key]) if key in tables else None
        arrays[f"{key}_u1" if stored is not None else f"{key}_f4"] = values if stored is None else stored
        counts["patches"] += len(values)
        counts["float32_patches"] += len(values) if stored is None else 0
    return arrays, counts
