"""Typed, frozen configuration of the VLM recipe; `vlm_config_reader` makes it of an AutoModel recipe YAML.

Defaults that follow from other values (`truncation` from `dataset.max_length`, everything that `stream` sets) are
resolved by the reader; the defaults here are those of AutoModel's own types.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pipeline.config import Frozen, LengthConfig

__all__ = [
    "VLM_CORRECTIONS",
    "ConversationSourceConfig",
    "MockConfig",
    "NemotronConfig",
    "ShareGptConfig",
    "SourceKind",
    "VlmBakeConfig",
    "VlmConfig",
]

SourceKind = Literal["meta", "cord_v2", "rdr", "unimm_chat", "mock", "nemotron"]
VlmCorrection = Literal["exif", "alpha", "sixteen_bit"]
VLM_CORRECTIONS: tuple[VlmCorrection, ...] = ("exif", "alpha", "sixteen_bit")
"""What may be done better than `Image.open(…).convert("RGB")`. A cut picture is a fault here in any stream."""


class ShareGptConfig(Frozen):
    """Names in a ShareGPT-like row, `columns` and `tags` of a meta data set, with AutoModel's defaults."""

    messages: str = "messages"
    images: str = "images"
    videos: str = "videos"
    role_tag: str = "role"
    content_tag: str = "content"
    user_tag: str = "user"
    assistant_tag: str = "assistant"
    system_tag: str = "system"


class MockConfig(Frozen):
    """AutoModel's `MockVlmDatasetConfig` fields and defaults."""

    num_samples: int = Field(default=10, ge=0)
    num_images_per_sample: int = Field(default=1, ge=0)
    image_size: tuple[int, int] = (256, 256)  # width, height
    prompt: str = "Describe this image."
    responses: tuple[str, ...] | None = None
    max_length: int | None = None  # words of an answer; 256 if null
    seed: int = Field(default=0, ge=0)


class NemotronConfig(Frozen):
    """Which rows of a folder of Nemotron subsets are used, and in what order."""

    subsets: tuple[str, ...]  # in the order in which they are read
    sampling: Literal["all", "reference"] = "all"
    num_samples: int = Field(default=0, ge=0)  # sampling reference: rows to choose, all subsets together
    seed: int = 42  # sampling reference
    max_shards: int | None = None  # per subset, the first by name


class ConversationSourceConfig(Frozen):
    """One source of conversations. The data set is the sources' rows one after another, in the tuple's order.

    `path` is the JSON or JSONL file of one data set (meta), a hub id or local folder (cord_v2, rdr, unimm_chat), or the
    folder that holds the subsets (nemotron).
    """

    name: str  # unique; the source's name in RowId, index and report
    kind: SourceKind
    path: str = ""
    media_dir: str = ""  # meta: root of relative media paths; "" is the working directory, as in the reference
    split: str = "train"  # hub kinds
    limit: int | None = Field(default=None, ge=0)  # cord_v2: the first rows only
    form: ShareGptConfig = Field(default_factory=ShareGptConfig)  # meta
    sample_ratio: float = Field(default=1.0, ge=0.0)  # meta
    mock: MockConfig | None = None
    nemotron: NemotronConfig | None = None


class VlmBakeConfig(Frozen):
    """The `bake` section, every switch resolved (the stream's default where the user said nothing)."""

    output: str
    length: LengthConfig | None = None  # None: one pass over the data set
    world_size: int = Field(default=1, gt=0)
    stream: Literal["reference", "improved"] = "reference"
    on_bad_row: Literal["replace", "drop"] = "replace"
    corrections: tuple[VlmCorrection, ...] = ()
    check_images: Literal["decode", "header"] = "decode"
    shard_bytes: int = Field(default=1 << 30, gt=0)
    max_dropped_fraction: float = Field(default=0.05, ge=0.0, le=1.0)
    executor: Literal["ray", "inline"] = "ray"
    allow_outside: bool = False
    storage_options: dict[str, object] = Field(default_factory=dict)  # fsspec options; secrets: never written out


class VlmConfig(Frozen):
    """The whole recipe, as the stages use it."""

    recipe: Literal["vlm"] = "vlm"
    seed: int | None = 42  # `FinetuneRecipeForVLM`; the order's own seed is DistributedSampler's 0
    processor_path: str
    processor_arguments: dict[str, object] = Field(default_factory=dict)  # of AutoProcessor.from_pretrained
    chat_template: str | None = None  # replaces the processor's
    model_path: str | None = None  # whose config names the class with get_rope_index; None: positions count up
    positions: Literal["auto", "one_dimensional"] = "auto"
    sources: tuple[ConversationSourceConfig, ...]
    shard_data: bool = False  # meta: every rank has its own slice of each source
    max_length: int | None = Field(default=None, gt=0)  # longest sample before the shift
    truncation: Literal["off", "tokens", "turns"] = "off"
    inject_fake_images: bool = True
    max_retries: int = Field(default=10, gt=0)  # replacements tried for a row, itself included
    packing: Literal["neat", "best_fit", "none"] = "none"
    pack_size: int | None = Field(default=None, gt=0)  # None exactly where packing is none
    packing_ratio: float = Field(default=1.0, gt=0.0)
    drop_long_samples: bool = False
    max_packs: int | None = Field(default=None, ge=0)
    balance_media_tokens: bool = True
    packing_format: Literal["neat", "thd"] = "neat"
    collate_max_length: int | None = Field(default=None, gt=0)
    mask: Literal["dense", "document"] = "dense"  # neat batches: block-causal mask, or document numbers (cp_size > 1)
    order: Literal["distributed", "length_grouped", "shuffled", "sequential"] = "distributed"
    shuffle: bool = True  # of order distributed
    drop_last: bool = False  # a rank's last, shorter batch
    local_batch_size: int = Field(default=1, gt=0)
    cp_size: int = Field(default=1, gt=0)
    bake: VlmBakeConfig
    ignored_sections: tuple[str, ...] = ()

    @property
    def num_lanes(self) -> int:
        """Lane r holds what rank r of the world size that was baked for reads."""
        return self.bake.world_size

    @property
    def position_model(self) -> str | None:
        """The model whose class gives positions, None where they count up: only packs carry positions."""
        return self.model_path if self.positions == "auto" and self.packing != "none" else None

    @property
    def sequence_alignment(self) -> int:
        """Tokens to whose multiple a document is padded: `2 * cp_size` in THD batches under context parallelism."""
        return 2 * self.cp_size if self.packing_format == "thd" and self.cp_size > 1 else 1
