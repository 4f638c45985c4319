"""The typed rows of the VLM recipe: conversations instead of sequence plans.

    source row   ──index──► ConversationRow   conversation, media, exact length, fault   index/<source>/<unit>.parquet
    all rows     ──plan───► ConversationPack  which rows share a pack, in what order      plan/lane-00000.parquet
    a pack       ──render─► tar sample        ids, labels, positions, pixels (`loaders.vlm_format`)

A conversation is AutoModel's form as JSON text, its media parts reduced to numbers: `{"type": "image", "media": 0}` is
the row's first medium. The text lives in the index; token ids exist only in the shards.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from pipeline.records import RowId

__all__ = [
    "VLM_INDEX_SCHEMA",
    "VLM_PLAN_COLUMNS",
    "VLM_PLAN_SCHEMA",
    "ConversationPack",
    "ConversationRow",
    "ConversationSample",
    "Medium",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Medium:
    """One image or video of a row, and where its bytes lie.

    Attributes:
        kind: "image" or "video".
        origin: Where its bytes are: "file" (of its own), "tar", "cell" (of the source's own row), "frames" (a video as
            image files: `frames` lists them), "mock" (made from the seed), "fake" (the injected white picture).
        container: File that holds it, relative to the source's root: a tar, a parquet file; "" for a file of its own
            and for generated pictures.
        reference: Path relative to the media root, tar member name, or "" for a cell.
        offset: First byte inside the container, -1 where the container is read some other way.
        num_bytes: Length inside the container, -1 likewise.
        width_px: Width from the header.
        height_px: Height from the header.
        num_frames: Frames that will be shown of a video (after sampling), -1 for images.
        frames: JSON text of the frame indexes to show and the video's fps, "" for images.
        fault: Why it cannot be used, "" if it can.
        stamp: As `records.ImageEntry.stamp`.
    """

    kind: str
    origin: str = "file"
    container: str = ""
    reference: str = ""
    offset: int = -1
    num_bytes: int = -1
    width_px: int = 0
    height_px: int = 0
    num_frames: int = -1
    frames: str = ""
    fault: str = ""
    stamp: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationRow:
    """One source row as a conversation, measured.

    Attributes:
        row: Number of the row in its file, in the unit's own count.
        fault: Reason the row cannot be used, "" if it can.
        conversation: JSON text of the messages; media parts carry the number of their medium.
        media: The row's media in order of appearance.
        num_tokens: Exact length after the processor, media tokens expanded, before truncation and shift.
        num_media_tokens: Media tokens among them; those of an injected fake picture do not count (the reference, which
            balances packs by this number, does not see them), while `media_end` does.
        media_end: Tokens up to and including the last media token: a cut before it would tear media from its pixels.
        num_label_tokens: Tokens that carry loss.
        turn_ends: Token counts at which a whole turn has just ended: where truncation may cut.
        reference_text_tokens: The row's own `_text_tokens`, -1 if it has none.
        reference_length: Length by the reference's estimate (`_text_tokens` or characters / 3, plus media), for
            reports and parity.
        conditions: Bit set of `records.Condition`.
    """

    row: int
    fault: str = ""
    conversation: str = ""
    media: tuple[Medium, ...] = ()
    num_tokens: int = 0
    num_media_tokens: int = 0
    media_end: int = 0
    num_label_tokens: int = 0
    turn_ends: tuple[int, ...] = ()
    reference_text_tokens: int = -1
    reference_length: int = 0
    conditions: int = 0


VLM_INDEX_SCHEMA = pa.schema(
    [
        ("row", pa.int64()),
        ("fault", pa.string()),
        ("conversation", pa.string()),
        (
            "media",
            pa.list_(
                pa.struct(
                    [
                        ("kind", pa.string()),
                        ("origin", pa.string()),
                        ("container", pa.string()),
                        ("reference", pa.string()),
                        ("offset", pa.int64()),
                        ("num_bytes", pa.int64()),
                        ("width_px", pa.int32()),
                        ("height_px", pa.int32()),
                        ("num_frames", pa.int32()),
                        ("frames", pa.string()),
                        ("fault", pa.string()),
                        ("stamp", pa.int64()),
                    ]
                )
            ),
        ),
        ("num_tokens", pa.int32()),
        ("num_media_tokens", pa.int32()),
        ("media_end", pa.int32()),
        ("num_label_tokens", pa.int32()),
        ("turn_ends", pa.list_(pa.int32())),
        ("reference_text_tokens", pa.int32()),
        ("reference_length", pa.int32()),
        ("conditions", pa.int32()),
    ]
)

VLM_PLAN_COLUMNS = (
    "row",
    "fault",
    "num_tokens",
    "num_media_tokens",
    "media_end",
    "num_label_tokens",
    "turn_ends",
    "reference_length",
    "conditions",
)
"""The index columns that the plan reads: no text, no media."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationSample:
    """One row in a pack.

    Attributes:
        row: The row that is rendered.
        instead_of: Number of the row (in the data set's order) whose place it takes; -1: in its own right.
        dataset_row: Number of the rendered row in the data set's order.
        keep_tokens: Tokens to keep of the unshifted sample (truncation), all if it equals `num_tokens`.
        num_tokens: Exact unshifted length before truncation.
    """

    row: RowId
    dataset_row: int
    instead_of: int = -1
    keep_tokens: int
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationPack:
    """One pack of the VLM recipe (`packing: none`: one sample).

    Attributes:
        lane: Lane number.
        pack: Number of the pack in its lane; position `pack * lanes + lane` of epoch 0's order.
        shard: Shard of the lane that holds it.
        number: Number of the pack in the planner's order (the reference's bins); every epoch's order is
            computed.
        num_tokens: Stored tokens: of all its samples, shifted and aligned; of the whole sample with `packing: none`.
        num_media_tokens: Media tokens.
        num_bytes: Estimate of its stored bytes, from which shard boundaries were fixed.
        samples: In order.
    """

    lane: int
    pack: int
    shard: int
    number: int
    num_tokens: int
    num_media_tokens: int
    num_bytes: int
    samples: tuple[ConversationSample, ...]


VLM_PLAN_SCHEMA = pa.schema(
    [
        ("lane", pa.int32()),
        ("pack", pa.int32()),
        ("shard", pa.int32()),
        ("number", pa.int64()),
        ("num_tokens", pa.int32()),
        ("num_media_tokens", pa.int32()),
        ("num_bytes", pa.int64()),
        (
            "samples",
            pa.list_(
                pa.struct(
                    [
                        ("source", pa.string()),
                        ("path", pa.string()),
                        ("row", pa.int64()),
                        ("unit", pa.string()),
                        ("index_row", pa.int32()),
                        ("dataset_row", pa.int64()),
                        ("instead_of", pa.int64()),
                        ("keep_tokens", pa.int32()),
                        ("num_tokens", pa.int32()),
                    ]
                )
            ),
        ),
    ]
)
