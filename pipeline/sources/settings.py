"""What measuring a source row depends on: picklable, and hashed into every index unit's fingerprint."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.config import Config, GroupConfig, SourceConfig

__all__ = ["MeasureSettings", "settings_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureSettings:
    """Settings of one source.

    Attributes:
        kind: Group kind.
        source: `group/dataset`.
        root: Folder of the parquet files, or of the media a JSONL names.
        corrections: Corrections in force.
        decode: Make sure that images that look fine can be decoded (`check_images: decode`).
        improved: Also read spellings that the reference drops (`stream: improved`).
        allow_outside: Media may lie outside `root`.
        may_draw_no_frame: The group's frame sampler may choose no frame of a video.
    """

    kind: str
    source: str
    root: str
    corrections: tuple[str, ...]
    decode: bool
    improved: bool
    allow_outside: bool
    may_draw_no_frame: bool

    @property
    def keep_control_text(self) -> bool:
        """Correction `control_tokens`."""
        return "control_tokens" in self.corrections


def settings_of(config: Config, group: GroupConfig, source: SourceConfig) -> MeasureSettings:
    """The settings that the configuration gives a source."""
    return MeasureSettings(
        kind=group.kind,
        source=source.name,
        root=source.data_dir,
        corrections=tuple(sorted(config.bake.corrections)),
        decode=config.bake.check_images == "decode",
        improved=config.bake.stream == "improved",
        allow_outside=config.bake.allow_outside,
        may_draw_no_frame=group.frame_sampler is not None and group.frame_sampler.min_num_frames < 1,
    )
