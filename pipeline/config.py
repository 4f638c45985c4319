"""Typed, frozen, strict configuration. (The reading part is built on these types.)"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = [
    "CORRECTIONS",
    "BakeConfig",
    "Config",
    "DatasetConfig",
    "FrameSamplerConfig",
    "GroupConfig",
    "ImageTransformConfig",
    "LengthConfig",
    "SourceConfig",
]

GroupKind = Literal["t2i_pretrain", "unified_edit", "vlm_sft", "nemotron_vlm"]
LINE_KINDS = ("vlm_sft", "nemotron_vlm")
Correction = Literal[
    "exif", "alpha", "sixteen_bit", "truncated", "resize_area", "system_turns", "control_tokens", "placeholders"
]
CORRECTIONS: tuple[Correction, ...] = (
    "exif",
    "alpha",
    "sixteen_bit",
    "truncated",
    "resize_area",
    "system_turns",
    "control_tokens",
    "placeholders",
)


class Frozen(BaseModel):
    """Base of every configuration model: immutable, unknown keys refused, no silent coercion."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=False)


class ImageTransformConfig(Frozen):
    """`image_transform_args` of a group: AutoModel's `ImageTransform` arguments and defaults."""

    max_image_size: int = Field(gt=0)
    min_image_size: int = Field(gt=0)
    image_stride: int = Field(gt=0)
    max_pixels: int = Field(default=14 * 14 * 9 * 1024, gt=0)
    image_mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    image_std: tuple[float, float, float] = (0.5, 0.5, 0.5)


class FrameSamplerConfig(Frozen):
    """`frame_sampler_args` of a group: AutoModel's `FrameSampler` arguments and defaults."""

    max_num_frames: int = -1
    min_num_frames: int = 8
    sample: Literal["rand"] = "rand"


class SourceConfig(Frozen):
    """One entry of a group's `dataset_names`, resolved through `dataset_info`.

    `num_used_data` is this source's entry of the group's list: files (parquet) or lines (JSONL) to take.
    """

    name: str  # "<group>/<dataset>"
    data_dir: str  # parquet folder, or the media root of a JSONL
    num_used_data: int
    jsonl_path: str | None = None
    parquet_info_path: str | None = None


class GroupConfig(Frozen):
    """A weighted entry of `grouped_datasets`."""

    name: str
    kind: GroupKind
    weight: float
    is_mandatory: bool
    sources: tuple[SourceConfig, ...]
    image_transform: ImageTransformConfig
    vit_image_transform: ImageTransformConfig | None = None  # unified_edit
    parquet_info: dict[str, int] | None = None  # unified_edit: path → row groups, as written inline in the group
    frame_sampler: FrameSamplerConfig | None = None  # vlm_sft
    shuffle_lines: bool = False  # kinds that read lines
    shuffle_seed: int = 0  # kinds that read lines

    @property
    def reads_lines(self) -> bool:
        """Its rows are the lines of JSONL files, and its images ViT images."""
        return self.kind in LINE_KINDS


class DatasetConfig(Frozen):
    """The `dataset` section: AutoModel's `BagelDatasetConfig` fields and defaults, groups resolved."""

    groups: tuple[GroupConfig, ...]
    expected_num_tokens: int = 32768
    max_num_tokens_per_sample: int = 16384
    max_num_tokens: int = 36864
    prefer_buffer_before: int = 16384
    max_buffer_size: int = 50
    interpolate_pos: bool = False
    use_flex: bool = False
    data_seed: int = 42
    text_cond_dropout_prob: float = 0.1
    vit_cond_dropout_prob: float = 0.4
    vae_cond_dropout_prob: float = 0.1
    vae_image_downsample: int = 16
    max_latent_size: int = 32
    vit_patch_size: int = 14
    max_num_patch_per_side: int = 70


class LengthConfig(Frozen):
    """How long a lane is: exactly one of the three."""

    packs_per_lane: int | None = Field(default=None, gt=0, le=99_999_999)  # a pack has eight digits in its key
    tokens: float | None = Field(default=None, gt=0)
    epochs: int | None = Field(default=None, gt=0)


class BakeConfig(Frozen):
    """The `bake` section, every switch resolved (the stream's default where the user said nothing)."""

    output: str
    length: LengthConfig
    world_size: int = Field(default=1, gt=0)
    stream: Literal["reference", "improved"] = "reference"
    packer: Literal["greedy", "best_fit"] = "greedy"
    corrections: tuple[Correction, ...] = ()
    drop_tail: bool = True
    check_images: Literal["decode", "header"] = "decode"
    balance: Literal["off", "window"] = "off"
    pool_size: int = Field(default=64, gt=1)  # best_fit: waiting samples
    balance_window: int = Field(default=256, gt=0)  # best_fit: packs per window
    max_vit_tokens: int | None = Field(default=None, gt=0)  # best_fit: budgets per pack
    max_vae_tokens: int | None = Field(default=None, gt=0)
    max_images: int | None = Field(default=None, gt=0)
    pixels: Literal["raw", "webp"] = "raw"
    shard_bytes: int = Field(default=1 << 30, gt=0)
    max_dropped_fraction: float = Field(default=0.05, ge=0.0, le=1.0)
    executor: Literal["ray", "inline"] = "ray"
    allow_outside: bool = False
    storage_options: dict[str, object] = Field(default_factory=dict)  # fsspec options; secrets: never written out


class Config(Frozen):
    """The whole recipe, as the stages use it."""

    recipe: Literal["bagel"] = "bagel"
    seed: int | None = 4396
    tokenizer_path: str
    num_workers: int = 1
    dataset: DatasetConfig
    bake: BakeConfig
    ignored_sections: tuple[str, ...] = ()

    @property
    def num_lanes(self) -> int:
        """Lane `w * world_size + r` is worker w of rank r; 0 workers make one lane a rank."""
        return self.bake.world_size * max(1, self.num_workers)

    @property
    def base_seed(self) -> int:
        """`seed`, or `data_seed` where the seed is 0 or null (reference: `PackedDataset.__iter__`)."""
        return self.seed or self.dataset.data_seed

    def lane_rank_and_worker(self, lane: int) -> tuple[int, int]:
        """Rank and worker that lane `lane` stands for."""
        return lane % self.bake.world_size, lane // self.bake.world_size
