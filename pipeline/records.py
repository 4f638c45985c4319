"""The typed rows that pass between stages; `schemas` has the columns in which they are stored.

    source file ──index──► IndexRow     one per source row: sizes, token counts, fault     index/<source>/<unit>.parquet
    IndexRow    ──draw───► Sample       the items one pass over the row yields             (in memory, plan)
    Sample      ──pack───► PlannedPack  one training sequence, every random draw spent     plan/lane-00000.parquet
    PlannedPack ──render─► tar sample   bytes                                              shards/lane-00000/000000.tar

Token ids live in the index (column `text_ids`, which the plan never reads); a plan row names them by (unit, index row,
text). Only a text that the plan composes itself (two edit instructions joined) carries its ids in the plan, because it
exists nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, IntFlag
from typing import Protocol

__all__ = [
    "Condition",
    "Draws",
    "Dropped",
    "Element",
    "ImageEntry",
    "IndexRow",
    "IndexedUnit",
    "Item",
    "ItemKind",
    "PlannedItem",
    "PlannedPack",
    "PlannedSample",
    "RowId",
    "Sample",
    "SourceIndex",
]


class ItemKind(IntEnum):
    """What one entry of a sample's sequence plan is."""

    TEXT = 0
    VIT = 1  # an image for the understanding tower: patches
    VAE = 2  # an image for the generation tower: latent cells


class Element(IntEnum):
    """A conversation, as the index writes it down (column `elements`), before a video's frame count is drawn."""

    TURN = 0  # a human turn begins: the count of placeholders starts again
    TEXT = 1  # the next text, without loss
    ANSWER = 2  # the next text, with loss
    IMAGE = 3  # an `<image>` placeholder; becomes an image while fewer than num_images of the turn did
    VIDEO = 4  # a `<video>` placeholder; stands for one `<image>` per frame drawn


class Condition(IntFlag):
    """Conditions of a row or an image that the reference handles badly, counted so that a report can say so.

    Each has the correction of the same name (`bake.corrections`); under `stream: reference` it is only counted.
    """

    NONE = 0
    EXIF = 1  # orientation 2..8, not applied by the reference
    ALPHA = 2  # LA, La, PA, RGBa: transparency lost, ink on black
    SIXTEEN_BIT = 4  # I;16, I, F: clipped to white instead of scaled
    TRUNCATED = 8  # cut in the middle: the rest is grey
    RESIZE_AREA = 16  # above max_pixels: shrunk by the ratio instead of its square root
    SYSTEM_TURNS = 32  # a speaker other than human and gpt: ignored
    CONTROL_TOKENS = 64  # special tokens spelled out in user text became control tokens
    PLACEHOLDERS = 128  # `<image>` counted per turn instead of over the conversation
    ANIMATED = 256  # several frames; the first is used
    ALIASED = 512  # a side of more patches than max_num_patch_per_side: position ids repeat
    SIZE_DIFFERS = 1024  # header and decoded size differ (the decoded one is used)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageEntry:
    """One image of a source row, as far as its header (or a trial decode) tells.

    Attributes:
        reference: Path relative to the media root as the row spells it; "" for an image stored in a parquet cell.
        width_px: Width after decoding (and after EXIF orientation where that correction is on).
        height_px: Height, likewise.
        fault: Why the image cannot be used, "" if it can.
        conditions: Bit set of `Condition`.
        stamp: 63-bit hash of the image file's size and mtime/etag, by which render notices that it changed; 0 for an
            image in a parquet cell (the parquet file's own identity covers it). Never part of a fingerprint.
    """

    reference: str = ""
    width_px: int = 0
    height_px: int = 0
    fault: str = ""
    conditions: int = 0
    stamp: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexRow:
    """One row of a source, measured: everything the plan needs to know, and the token ids that render needs.

    Attributes:
        row: Number of the row in its file (parquet: over the whole file; JSONL: line number within the *unit*).
        row_group: Parquet row group, -1 for JSONL.
        row_in_group: Row within the row group, -1 for JSONL.
        label: JSON text of the pandas index label where it is not `row_in_group`, else "".
        fault: Reason the row cannot be used ("" if it can); the reference drops it too, or dies of it.
        fault_after_draws: The fault strikes after the row's frame draws were spent (video rows only).
        images: The row's images in order; a folder of frames has one entry per frame, a video file one entry.
        num_frames: Frames of the row's video, -1 if it has none.
        video_is_folder: The video is a folder of frames (sampled only where it has more frames than drawn).
        text_num_tokens: Raw token count of each text; -1 for a text that cannot be used (null or no string).
        text_ids: Token ids of each text.
        texts: The texts themselves, only where the plan may have to make another text of them (`unified_edit`: joined
            instructions; `vlm_sft`: a turn whose text depends on the number of frames drawn), else empty.
        text_group_sizes: How the flat text list falls into lists of alternatives: captions of an image (one group),
            instructions of each edit step (one group per step; -1: the step's list is null or no list).
        elements: Conversation elements (`Element`), `vlm_sft` only.
        line_offset: Byte offset of a JSONL line in its file, -1 for parquet.
        line_num_bytes: Length of the line in bytes including its line end, -1 for parquet.
        conditions: Bit set of `Condition` for the row itself.
    """

    row: int
    row_group: int = -1
    row_in_group: int = -1
    label: str = ""
    fault: str = ""
    fault_after_draws: bool = False
    images: tuple[ImageEntry, ...] = ()
    num_frames: int = -1
    video_is_folder: bool = False
    text_num_tokens: tuple[int, ...] = ()
    text_ids: tuple[Sequence[int], ...] = ()
    texts: tuple[str, ...] = ()
    text_group_sizes: tuple[int, ...] = ()
    elements: tuple[int, ...] = ()
    line_offset: int = -1
    line_num_bytes: int = -1
    conditions: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexedUnit:
    """One finished index unit, as `index/<source>/source.json` lists it.

    Attributes:
        unit: Its name: the index file's name without `.parquet`.
        path: Source file relative to the source's root.
        first_row: Number in the file of the unit's first row (JSONL ranges; 0 for parquet).
        num_rows: Rows of the unit, faulty ones included.
        row_group_sizes: Rows of each parquet row group; () for JSONL.
        fault: Reason the whole file could not be read, "" if it could (then it has no rows).
        content: Fingerprint of the unit's rows (stamps left out), its file's size and, of a JSONL, its lines' bytes;
            the same wherever the data lies.
    """

    unit: str
    path: str
    first_row: int
    num_rows: int
    row_group_sizes: tuple[int, ...] = ()
    fault: str = ""
    content: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceIndex:
    """All units of one source in the order of (path, first_row).

    Attributes:
        source: `group/dataset`.
        units: The indexed units.
        rows_unused: Rows in files that `num_used_data` leaves out and that were therefore only counted.
    """

    source: str
    units: tuple[IndexedUnit, ...]
    rows_unused: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RowId:
    """The stable id of a source row and where its index row lies. Nothing here depends on where the data is stored.

    Attributes:
        source: `group/dataset`, the source's name.
        path: Path of the file relative to the source's root (JSONL: the file's own name).
        row: Number of the row in its file.
        unit: Name of the index unit that holds the row.
        index_row: Row number inside that unit's index file.
    """

    source: str
    path: str
    row: int
    unit: str
    index_row: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One entry of a sample's sequence plan, before condition dropout.

    Attributes:
        kind: Text, ViT image or VAE image.
        loss: Text: cross entropy on its tokens. VAE image: it is the noised target.
        enable_cfg: The item takes part in condition dropout.
        num_tokens: Text: raw token count. Image: number of patches (ViT) or latent cells (VAE).
        text: Number of the text in the index row's `text_ids`; -1 for images and composed texts.
        token_ids: Ids of a text composed by the plan, else empty.
        image: Number of the image in the row (frame of a video: the frame's number), -1 for texts.
        width_px: Planned width after resizing, 0 for texts.
        height_px: Planned height after resizing, 0 for texts.
    """

    kind: ItemKind
    loss: bool = False
    enable_cfg: bool = False
    num_tokens: int = 0
    text: int = -1
    token_ids: tuple[int, ...] = ()
    image: int = -1
    width_px: int = 0
    height_px: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One source row turned into items, every draw about its content spent.

    Attributes:
        row: Where it comes from.
        items: Its sequence plan.
        num_tokens: The reference's count (`w*h // stride²` of *all* its images plus raw text tokens), without the two
            marker tokens per item that the packer adds.
        conditions: Bit set of `Condition` of the row and of the images it uses.
    """

    row: RowId
    items: tuple[Item, ...]
    num_tokens: int
    conditions: int = 0

    @property
    def num_tokens_estimated(self) -> int:
        """The length the greedy packer budgets with: two marker tokens per item on top."""
        return self.num_tokens + 2 * len(self.items)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """A row that yields no sample, and why."""

    reason: str


class Draws(Protocol):
    """The two random streams of a lane, as sources use them (implemented by `plan.random.LaneRandom`)."""

    def choice(self, count: int) -> int:
        """`random.choice(range(count))` of the Python stream: an index in [0, count); IndexError if count < 1."""

    def uniform(self) -> float:
        """`random.random()` of the Python stream: a float in [0, 1)."""

    def randint(self, low: int, high: int) -> int:
        """`RandomState.randint(low, high)` of the NumPy stream: low ≤ value < high."""

    def permutation(self, count: int) -> Sequence[int]:
        """`RandomState.permutation(count)` of the NumPy stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedItem:
    """An item of a planned sample, after dropout. Dropped items stay listed: they still move the rope id.

    Attributes:
        item: The item as drawn.
        kept: False if condition dropout removed it.
        timestep: Flow-matching timestep of a VAE image with loss (float64, as drawn); NaN otherwise.
    """

    item: Item
    kept: bool = True
    timestep: float = float("nan")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedSample:
    """A sample in a pack.

    Attributes:
        row: Where it comes from.
        items: Its items after dropout.
        data_indexes: JSON text of the reference's `data_indexes` entry (`[file, row_group, row]`, `[row_group, row]`
            or a line number, counted in the worker's own list).
        worker_id: Worker of the lane.
        dataset_name: Group name as the reference reports it.
    """

    row: RowId
    items: tuple[PlannedItem, ...]
    data_indexes: str
    worker_id: int
    dataset_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPack:
    """One training sequence, fully decided.

    Attributes:
        lane: Lane number.
        pack: Number of the pack in its lane.
        shard: Number of the shard in its lane that will hold it.
        sequence_length: Tokens of all kept items (unpadded).
        pixel_bytes: Raw uint8 bytes of its stored pictures, each stored once.
        samples: In sequence order.
    """

    lane: int
    pack: int
    shard: int
    sequence_length: int
    pixel_bytes: int
    samples: tuple[PlannedSample, ...] = field(default=())

    def kept_items(self) -> Iterator[tuple[PlannedSample, PlannedItem]]:
        """The items that are really in the sequence, in order."""
        for sample in self.samples:
            for item in sample.items:
                if item.kept:
                    yield sample, item
