"""`nemotron_vlm`: a group of the BAGEL recipe that reads a subset of Nemotron-VLM-Dataset-v2 as `vlm_sft` samples.

    <data_dir>/<subset>/<subset>.jsonl     OpenAI-style messages
    <data_dir>/<subset>/media/*.tar        their pictures, joined as by `conversations.nemotron`, sampling all

Every picture becomes a ViT image where it stands, assistant turns carry loss, all other texts do not. A picture's
reference says where it lies, so that it is read by range: `<tar>@<offset>+<bytes>#<member>`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice

from pipeline.media.header import inspect_image
from pipeline.records import Element, ImageEntry, IndexRow
from pipeline.sources.conversation import Piece
from pipeline.sources.conversations.forms import Conversation
from pipeline.sources.conversations.nemotron import MISSING_MEMBER, MemberLookup, member_key, read_line
from pipeline.sources.draft import Draft
from pipeline.sources.media_files import locate, media_stamp
from pipeline.sources.settings import MeasureSettings
from pipeline.sources.tar_members import TarReader
from pipeline.sources.vlm_sft import NO_PIECES
from pipeline.storage import Storage
from pipeline.tokenizer import is_encodable
from pipeline.vlm_records import Medium

__all__ = ["drafts", "place_of"]

_ROWS_PER_LOOKUP = 4096
_PLACE = re.compile(r"(?P<shard>.+?)@(?P<offset>\d+)\+(?P<num_bytes>\d+)#", re.DOTALL)

Line = tuple[int, int, bytes | None]
"""Offset, number of bytes, content."""


def place_of(reference: str) -> tuple[str, int, int]:
    """Tar, offset and length of the picture that a reference names.

    >>> place_of("docs/media/shard_000000.tar@512+2787#0.png")
    ('docs/media/shard_000000.tar', 512, 2787)
    """
    match = _PLACE.match(reference)
    if match is None:
        raise ValueError(f"no place in {reference!r}")
    return match["shard"], int(match["offset"]), int(match["num_bytes"])


def drafts(
    lines: Iterable[tuple[int, Line]], settings: MeasureSettings, storage: Storage, tables: Sequence[str]
) -> Iterator[Draft]:
    """Measure numbered lines; `tables` are the member tables of the subset's tars. Never raises for a bad row."""
    lookup, measure = MemberLookup(storage, tables), _Measuring(settings, storage)
    iterator = iter(lines)
    try:
        while portion := list(islice(iterator, _ROWS_PER_LOOKUP)):
            read = [(number, line, *read_line(line[2])) for number, line in portion]
            wanted = {member_key(medium.value) for _, _, made, _ in read if made is not None for medium in made.media}
            places = lookup.places(wanted)
            for number, (offset, num_bytes, _), made, fault in read:
                row = IndexRow(row=number, line_offset=offset, line_num_bytes=num_bytes)
                if made is None:
                    yield Draft(row=replace(row, fault=fault.reason), detail=fault.detail)
                else:
                    yield measure.draft(row, made, places)
    finally:
        measure.close()


class _Measuring:
    """Looks at pictures by range."""

    def __init__(self, settings: MeasureSettings, storage: Storage) -> None:
        self._settings = settings
        self._storage = storage
        self._tars = TarReader(storage)
        self._stamps: dict[str, int] = {}

    def close(self) -> None:
        self._tars.close()

    def draft(self, row: IndexRow, conversation: Conversation, places: Mapping[str, Medium]) -> Draft:
        """The row with its pictures measured and its pieces in order."""
        images = tuple(self._image(medium.value, places) for medium in conversation.media)
        fault = next((image.fault for image in images if image.fault), "")
        row = replace(row, images=images, fault=fault)
        if fault:
            return Draft(row=row, detail=next(image.reference for image in images if image.fault))
        pieces = _pieces(conversation)
        texts = [text for element, text in pieces if element in (Element.TEXT, Element.ANSWER)]
        if not all(is_encodable(text) for text in texts):
            return Draft(row=replace(row, fault="lone_surrogate"))
        return Draft(row=row, texts=texts, pieces=pieces or NO_PIECES)

    def _image(self, reference: str, places: Mapping[str, Medium]) -> ImageEntry:
        place = places.get(member_key(reference))
        if place is None:
            return ImageEntry(reference=reference if is_encodable(reference) else "", fault=MISSING_MEMBER)
        settings = self._settings
        url = locate(settings.root, place.container, self._storage, allow_outside=settings.allow_outside)
        if place.container not in self._stamps:
            self._stamps[place.container] = media_stamp(self._storage.identity(url))
        entry = inspect_image(
            self._tars.member(url, place.offset, place.num_bytes),
            corrections=frozenset(settings.corrections),
            decode=settings.decode,
        )
        spelled = f"{place.container}@{place.offset}+{place.num_bytes}#{place.reference}"
        return replace(entry, reference=spelled, stamp=self._stamps[place.container])


def _pieces(conversation: Conversation) -> list[Piece]:
    """Turns as elements; texts of nothing but spaces leave no trace."""
    pieces: list[Piece] = []
    for message in conversation.messages:
        element = Element.ANSWER if message["role"] == "assistant" else Element.TEXT
        pieces.append((Element.TURN, ""))
        for part in message["content"]:
            if part["type"] == "image":
                pieces.append((Element.IMAGE, ""))
            elif part["text"].strip():
                pieces.append((element, part["text"]))
    return pieces
