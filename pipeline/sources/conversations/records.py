"""What passes between a conversation source and the index: settings in, drafts out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pipeline.vlm_config import ConversationSourceConfig, VlmConfig
from pipeline.vlm_records import Medium

__all__ = ["ConversationSettings", "Draft", "FrameRule", "settings_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameRule:
    """Which frames of a video file are shown: the arguments of `processor.predicted_frames`."""

    fps: float | None = None
    min_frames: int = 4
    max_frames: int | None = None
    multiple: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationSettings:
    """What measuring a row depends on: picklable, and hashed into every index unit's fingerprint.

    Attributes:
        source: The source.
        corrections: Of pixels, see `VLM_CORRECTIONS`.
        decode: Make sure that pictures that look fine can be decoded (`check_images: decode`).
        allow_outside: Media may lie outside the source's root.
        frames: Of video files.
    """

    source: ConversationSourceConfig
    corrections: tuple[str, ...] = ()
    decode: bool = True
    allow_outside: bool = False
    frames: FrameRule = field(default_factory=FrameRule)

    @property
    def root(self) -> str:
        """Folder that media must lie in."""
        return self.source.media_dir if self.source.kind == "meta" else self.source.path


def settings_of(config: VlmConfig, source: ConversationSourceConfig, frames: FrameRule) -> ConversationSettings:
    """The settings that the configuration gives a source."""
    return ConversationSettings(
        source=source,
        corrections=tuple(sorted(config.bake.corrections)),
        decode=config.bake.check_images == "decode",
        allow_outside=config.bake.allow_outside,
        frames=frames,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A row as its source tells it: media are placed, not yet looked at.

    Attributes:
        row: Number of the row in its unit.
        messages: The conversation; media parts carry the number of their medium.
        media: The media in order. Of a video, `frames` may hold wishes: `{"indexes": […], "fps": 2, "files": […]}`.
        once: Of drafts with the same non-empty key, none is a row after the first that can be used.
        fault: Why the row cannot be used, "" if it may be.
        detail: What a person wants to see beside the fault.
        text_tokens: The row's own `_text_tokens`, -1 if it has none.
        media_meta: The row's own `mm_inputs_meta`.
    """

    row: int
    messages: tuple[dict[str, Any], ...] = ()
    media: tuple[Medium, ...] = ()
    once: str = ""
    fault: str = ""
    detail: str = ""
    text_tokens: int = -1
    media_meta: Mapping[str, Any] | None = None
