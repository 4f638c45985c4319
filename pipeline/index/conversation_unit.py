"""One index unit of conversations: rows of a file or range, their media looked at, their exact length computed.

    Draft ──media measured──► sizes ──processor, predicted──► ids, labels ──► ConversationRow
                                └─────every 2^k-th row: processor on the pixels──► must be the same ids

Where the processor's lengths do not follow from sizes, it is run on the pixels of every row instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import jinja2
import numpy as np

from pipeline.conversation_index_table import conversation_rows_to_table
from pipeline.errors import SourceError
from pipeline.index.records import NO_FILE, UnitResult, file_identity
from pipeline.index.reference_length import reference_length
from pipeline.index.unit_file import UnitEnd, publish_unit, read_finished
from pipeline.media.faults import ImageFault
from pipeline.processor import IGNORE_INDEX, EncodedSample, VlmProcessor
from pipeline.sources.conversations import hub, meta, mock, nemotron
from pipeline.sources.conversations.forms import Conversation
from pipeline.sources.conversations.media import FAKE_SIDE_PX, MediaReader
from pipeline.sources.conversations.nemotron_choice import ChosenRow
from pipeline.sources.conversations.reader import row_media
from pipeline.sources.conversations.records import ConversationSettings, Draft
from pipeline.sources.json_text import JsonFault
from pipeline.storage import FileIdentity, Storage
from pipeline.tokenizer import is_encodable
from pipeline.vlm_records import VLM_INDEX_SCHEMA, ConversationRow, Medium

__all__ = ["ConversationUnit", "index_conversation_unit"]

_ROWS_AHEAD = 64
_CONNECTIONS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationUnit:
    """One unit to index: picklable. Attributes as of `records.UnitSpec`, and:

    Attributes:
        start: First byte (JSONL) or row (hub).
        end: End of the range.
        processor: Measures; travels as its path.
        inject_fake_images: Rows without media get the white picture.
        members: Nemotron: URLs of the member tables of the subset's tars.
        chosen: Nemotron, sampling reference: the rows.
    """

    settings: ConversationSettings
    unit: str
    path: str
    url: str
    target: str
    start: int = 0
    end: int = 0
    identity: FileIdentity
    fingerprint: str
    storage: Storage
    processor: VlmProcessor
    inject_fake_images: bool
    members: tuple[str, ...] = ()
    chosen: tuple[ChosenRow, ...] | None = None

    @property
    def source(self) -> str:
        """Name of the source."""
        return self.settings.source.name

    def current_identity(self) -> FileIdentity:
        """What `identity` would be now."""
        if self.settings.source.kind == "mock":
            return NO_FILE
        if self.settings.source.kind in ("meta", "nemotron"):
            return file_identity(self.url, self.storage)
        return hub.hub_identity(self.settings.source)

    def drafts(self) -> Iterator[Draft]:
        """The unit's rows as their source tells them."""
        source = self.settings.source
        if source.kind == "meta":
            return meta.drafts(source, self.storage, self.start, self.end)
        if source.kind == "mock":
            assert source.mock is not None
            return mock.drafts(source.mock)
        if source.kind != "nemotron":
            return hub.drafts(source, self.start, self.end)
        if self.chosen is not None:
            return nemotron.chosen_drafts(self.storage, self.url, self.chosen)
        return nemotron.drafts(self.storage, self.url, self.start, self.end, self.members)


def index_conversation_unit(spec: ConversationUnit) -> tuple[str, UnitResult]:
    """Measure a unit and publish its index file, unless the one that is there is still right.

    Raises:
        SourceError: A predicted length is not the processor's own.
        RunFailed: The file changed while it was read, or the storage failed.
    """
    finished = read_finished(spec)
    if finished is not None:
        return spec.source, finished
    reader = MediaReader(spec.settings, spec.storage)
    measured = _Measured(spec, reader)
    try:
        result = publish_unit(spec, VLM_INDEX_SCHEMA, measured.rows(), conversation_rows_to_table, measured.end)
    finally:
        reader.close()
    return spec.source, result


class _Measured:
    """The measured rows of a unit."""

    def __init__(self, spec: ConversationUnit, reader: MediaReader) -> None:
        self._spec = spec
        self._reader = reader
        self._fault = ""
        self._num_usable = 0

    def end(self) -> UnitEnd:
        """What is known behind the last row."""
        return UnitEnd(fault=self._fault)

    def rows(self) -> Iterator[tuple[ConversationRow, str, str]]:
        """Every row, with its fault and a detail for people."""
        usable: set[str] = set()
        for draft, media, conditions in self._looked_at():
            if draft.once and draft.once in usable:
                continue
            row, detail = self._row(draft, media, conditions)
            if not row.fault and draft.once:
                usable.add(draft.once)
            yield row, row.fault, detail

    def _looked_at(self) -> Iterator[tuple[Draft, tuple[Medium, ...], int]]:
        """Drafts with their media measured; those on an object store many at a time."""
        drafts = self._drafts()
        if not self._reader.is_remote:
            for draft in drafts:
                yield self._with_media(draft)
            return
        with ThreadPoolExecutor(_CONNECTIONS) as pool:
            while portion := list(islice(drafts, _ROWS_AHEAD)):
                yield from pool.map(self._with_media, portion)

    def _drafts(self) -> Iterator[Draft]:
        try:
            yield from self._spec.drafts()
        except JsonFault as fault:  # of a file that is one JSON value
            self._fault = str(fault)

    def _with_media(self, draft: Draft) -> tuple[Draft, tuple[Medium, ...], int]:
        measured = [self._reader.measure(medium) for medium in draft.media]
        conditions = 0
        for _, found in measured:
            conditions |= found
        return draft, tuple(medium for medium, _ in measured), conditions

    def _row(self, draft: Draft, media: tuple[Medium, ...], conditions: int) -> tuple[ConversationRow, str]:
        spec = self._spec
        row = ConversationRow(row=draft.row, conditions=conditions, reference_text_tokens=draft.text_tokens)
        if draft.fault:
            return replace(row, fault=draft.fault), draft.detail
        text = _conversation_json(draft.messages)
        if not is_encodable(text) or not all(is_encodable(medium.reference + medium.frames) for medium in media):
            return replace(row, fault="not_encodable"), draft.detail
        estimate = reference_length(draft.messages, draft.text_tokens, draft.media_meta, spec.processor)
        row = replace(row, conversation=text, media=media, reference_length=min(estimate, _LARGEST))
        for medium in media:
            if medium.fault:
                return replace(row, fault=medium.fault), medium.reference
        messages = draft.messages
        if spec.inject_fake_images and not media:
            messages, media = _with_fake_picture(messages)
            row = replace(row, conversation=_conversation_json(messages), media=media)
        try:
            sample = self._sample(messages, media)
        except ImageFault as fault:
            return replace(row, fault=fault.reason), fault.detail
        except _PROCESSOR_ERRORS as error:
            return replace(row, fault="processor_error"), str(error)[:200]
        return _with_lengths(row, sample, spec.processor), ""

    def _sample(self, messages: tuple[dict[str, Any], ...], media: tuple[Medium, ...]) -> EncodedSample:
        """Ids and labels, predicted where they can be; the prediction is checked on rows 1, 2, 4, 8, … of the unit."""
        processor = self._spec.processor
        has_video = any(medium.kind == "video" for medium in media)
        if not (processor.predicts_videos if has_video else processor.is_predictable):
            return self._encoded(messages, media)
        sample = processor.predict(
            messages,
            [(medium.height_px, medium.width_px) for medium in media if medium.kind == "image"],
            [(medium.num_frames, medium.height_px, medium.width_px) for medium in media if medium.kind == "video"],
        )
        self._num_usable += 1
        if self._num_usable & (self._num_usable - 1) == 0:
            self._check(sample, messages, media)
        return sample

    def _check(self, predicted: EncodedSample, messages: tuple[dict[str, Any], ...], media: tuple[Medium, ...]) -> None:
        try:
            real = self._encoded(messages, media)
        except ImageFault:
            return  # only its header was looked at; render counts it
        if np.array_equal(predicted.input_ids, real.input_ids) and np.array_equal(predicted.labels, real.labels):
            return
        spec = self._spec
        raise SourceError(
            f"{spec.source}: {spec.path} has a row whose length was predicted as {len(predicted.input_ids)} tokens and "
            f"is {len(real.input_ids)} by the processor {spec.processor.name}. Every pack would be planned wrongly. "
            "Please report the processor; its lengths cannot be predicted with this version of transformers."
        )

    def _encoded(self, messages: tuple[dict[str, Any], ...], media: tuple[Medium, ...]) -> EncodedSample:
        shown = row_media(self._reader, media)
        return self._spec.processor.encode(
            messages,
            shown.images,
            [video.frames for video in shown.videos],
            [video.metadata for video in shown.videos],
        )


_LARGEST = 2**31 - 1
_PROCESSOR_ERRORS = (ValueError, TypeError, KeyError, IndexError, AttributeError, jinja2.TemplateError)
"""What a template or processor raises of a conversation that it does not take; the reference replaces such a row."""


def _conversation_json(messages: tuple[dict[str, Any], ...]) -> str:
    return Conversation(messages=messages).to_json()


def _with_fake_picture(messages: tuple[dict[str, Any], ...]) -> tuple[tuple[dict[str, Any], ...], tuple[Medium, ...]]:
    """The white picture before the first user turn's text (nemo-automodel 0.7.0 `vlm.fake_image`)."""
    part = {"type": "image", "media": 0}
    made = list(messages)
    for number, message in enumerate(made):
        if message["role"] == "user":
            made[number] = {**message, "content": [part, *message["content"]]}
            break
    else:
        made.insert(0, {"role": "user", "content": [part]})
    side = FAKE_SIDE_PX
    return tuple(made), (Medium(kind="image", origin="fake", width_px=side, height_px=side),)


def _with_lengths(row: ConversationRow, sample: EncodedSample, processor: VlmProcessor) -> ConversationRow:
    ids = sample.input_ids
    is_medium = (
        sample.mm_token_type_ids > 0
        if sample.mm_token_type_ids is not None
        else np.isin(ids, np.array(processor.media_token_ids, dtype=np.int64))
    )
    places = np.flatnonzero(is_medium)
    hides_media = bool(row.media) and not len(places)  # it does not say which tokens they are: then never cut
    media_end = len(ids) if hides_media else int(places[-1]) + 1 if len(places) else 0
    return replace(
        row,
        num_tokens=len(ids),
        num_media_tokens=0 if any(medium.origin == "fake" for medium in row.media) else len(places),
        media_end=media_end,
        num_label_tokens=int((sample.labels != IGNORE_INDEX).sum()),
        turn_ends=tuple((np.flatnonzero(ids == processor.markers[1]) + 1).tolist()),
    )
