"""The media behind an index row: what render hands to the processor, in the row's order."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from PIL import Image

from pipeline.errors import RunFailed
from pipeline.media.faults import ImageFault
from pipeline.sources.conversations.media import ChangedMedium, MediaReader, Video
from pipeline.sources.conversations.records import ConversationSettings, FrameRule, settings_of
from pipeline.sources.media_files import MediaFault
from pipeline.storage import Storage
from pipeline.vlm_config import VlmConfig
from pipeline.vlm_records import Medium

__all__ = ["ConversationMedia", "RowMedia", "row_media"]

_CONNECTIONS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class RowMedia:
    """A row's media as `VlmProcessor.encode` takes them."""

    images: tuple[Image.Image, ...] = ()
    videos: tuple[Video, ...] = ()


class ConversationMedia:
    """Reads the media of any source of a configuration. One per render task."""

    def __init__(self, config: VlmConfig, storage: Storage) -> None:
        self._storage = storage
        self._settings: dict[str, ConversationSettings] = {
            source.name: settings_of(config, source, FrameRule()) for source in config.sources
        }
        self._readers: dict[str, MediaReader] = {}

    def read(self, source: str, media: Sequence[Medium]) -> RowMedia:
        """The media of one row of a source.

        Raises:
            ImageFault: One of them cannot be decoded, though the index promised it (`check_images: header`).
            RunFailed: A file is gone, changed since it was indexed, or cannot be read.
        """
        if source not in self._readers:
            self._readers[source] = MediaReader(self._settings[source], self._storage)
        try:
            return row_media(self._readers[source], media)
        except ImageFault:
            raise
        except (ChangedMedium, MediaFault, OSError) as error:
            raise RunFailed(
                f"{source}: a picture that the index measured is not there any more ({error}). The plan's lengths "
                "would be wrong. Put the sources back as they were, or index again."
            ) from error

    def close(self) -> None:
        """Drop temporary files."""
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()


def row_media(reader: MediaReader, media: Sequence[Medium]) -> RowMedia:
    """Pictures and videos in order; ranges of an object store are fetched side by side. Errors as `MediaReader`'s."""
    images = [medium for medium in media if medium.kind == "image"]
    if reader.is_remote and len(images) > 1:
        with ThreadPoolExecutor(_CONNECTIONS) as pool:
            pictures = tuple(pool.map(reader.image, images))
    else:
        pictures = tuple(reader.image(medium) for medium in images)
    return RowMedia(images=pictures, videos=tuple(reader.video(medium) for medium in media if medium.kind == "video"))
