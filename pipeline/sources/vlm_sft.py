"""`vlm_sft`: a JSONL line holds a conversation with images, a video, or neither; a sample trains on its answers.

    {"image": "a.jpg" or ["a.jpg", …], "conversations": [{"from": "human", "value": "<image>What is it?"}, …]}
    {"video": "clip.mp4" or "frames/", "conversations": [{"from": "human", "value": "<video>What happens?"}, …]}

Reference: `SftJSONLIterableDataset`, `FrameSampler`. Only videos draw; their draws are spent even if
the row is dropped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter

from pipeline.config import BakeConfig, DatasetConfig, FrameSamplerConfig, GroupConfig
from pipeline.media.video import choose_folder_frames, choose_video_frames
from pipeline.records import Condition, Draws, Dropped, Element, IndexRow, Item, ItemKind, RowId, Sample
from pipeline.sources.conversation import ConversationFault, Piece, first_turn_pieces, read_conversation
from pipeline.sources.draft import Draft
from pipeline.sources.items import image_item, num_stride_cells, plan_image, sample_of, text_item
from pipeline.sources.json_text import JsonFault, parse_json
from pipeline.sources.lookup import explained, no_answer
from pipeline.sources.media_files import measure_file, measure_folder, measure_video
from pipeline.sources.messages import as_conversation
from pipeline.sources.settings import MeasureSettings
from pipeline.storage import Storage
from pipeline.tokenizer import Tokenizer, is_encodable

__all__ = ["draw", "measure", "named_media"]


_LOSS = attrgetter("loss")
_TURN, _TEXT, _ANSWER, _IMAGE, _VIDEO = (int(element) for element in Element)
BYTE_ORDER_MARK = "\ufeff"


def measure(
    line: bytes,
    row: IndexRow,
    settings: MeasureSettings,
    storage: Storage,
    fetched: Mapping[str, bytes] | None = None,
) -> Draft:
    """Measure one JSONL line (with its line end); `row` says where it lies. Never raises for a bad row."""
    try:
        record = read_record(line, row.line_offset, settings)
    except JsonFault as fault:
        return Draft(row=replace(row, fault=str(fault)), detail=line[:80].decode("utf-8", "replace"))
    row = _with_media(row, record, settings, storage, fetched)
    if row.fault and not row.fault_after_draws:
        return Draft(row=row, detail=next((image.reference for image in row.images if image.fault), ""))
    try:
        conversation = read_conversation(
            record.get("conversations"),
            num_frames=row.num_frames,
            may_draw_none=settings.may_draw_no_frame,
            keep_system_turns="system_turns" in settings.corrections,
        )
    except ConversationFault as fault:
        after_draws = row.num_frames >= 0
        detail = explained(fault, record, line, improved=settings.improved)
        return Draft(row=replace(row, fault=str(fault), fault_after_draws=after_draws), detail=detail)
    texts = [text for element, text in conversation.pieces if element in (Element.TEXT, Element.ANSWER)]
    if conversation.first_turn is not None and conversation.pieces[0][0] is Element.ANSWER:
        texts = texts[1:]
    if not all(is_encodable(text) for text in (*texts, conversation.first_turn or "")):
        return Draft(row=replace(row, fault="lone_surrogate", fault_after_draws=row.num_frames >= 0))
    row = replace(row, conditions=row.conditions | conversation.conditions | _asks_too_much(row, conversation.pieces))
    if row.conditions & Condition.PLACEHOLDERS and "placeholders" not in settings.corrections:
        return Draft(row=replace(row, fault="too_many_placeholders"))
    first_turn = () if conversation.first_turn is None else (conversation.first_turn,)
    answers = any(element is Element.ANSWER for element, _ in conversation.pieces)
    detail = "" if answers and all(texts) else no_answer(record, line, improved=settings.improved)
    return Draft(
        row=replace(row, texts=first_turn), texts=texts, pieces=conversation.pieces or NO_PIECES, detail=detail
    )


NO_PIECES: tuple[Piece, ...] = ((Element.TURN, ""),)
"""What an empty conversation counts as: a turn without anything in it."""


def read_record(line: bytes, line_offset: int, settings: MeasureSettings) -> dict[str, object]:
    """The JSON object of a line; in an improved stream brought into conversation form, without byte order mark.

    Raises:
        JsonFault: With the reason.
    """
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise JsonFault("invalid_utf8") from error
    if settings.improved and line_offset == 0:
        text = text.removeprefix(BYTE_ORDER_MARK)
    if not text.strip():
        raise JsonFault("blank_line")
    record = parse_json(text)
    if not isinstance(record, dict):
        raise JsonFault("not_an_object")
    return as_conversation(record) if settings.improved else record


def named_media(line: bytes, line_offset: int, settings: MeasureSettings) -> list[str]:
    """The image files a line names (none for a faulty line or a video), so that they can be fetched ahead."""
    try:
        images = read_record(line, line_offset, settings).get("image")
    except JsonFault:
        return []
    return [image for image in (images if isinstance(images, list) else [images]) if isinstance(image, str)]


def _with_media(
    row: IndexRow,
    record: Mapping[str, object],
    settings: MeasureSettings,
    storage: Storage,
    fetched: Mapping[str, bytes] | None,
) -> IndexRow:
    """The row with its images measured; `image` goes before `video`."""
    if "image" in record:
        references = record["image"] if isinstance(record["image"], list) else [record["image"]]
        paths = [reference for reference in references if isinstance(reference, str)]
        if len(paths) < len(references):
            return replace(row, fault="image_not_a_path")
        images = tuple(measure_file(path, settings, storage, fetched=fetched) for path in paths)
        return replace(row, images=images, fault=next((image.fault for image in images if image.fault), ""))
    if "video" not in record:
        return row
    reference = record["video"]
    if not isinstance(reference, str):
        return replace(row, fault="video_not_a_path")
    if reference.endswith("/"):
        frames = measure_folder(reference, settings, storage)
        fault = next((frame.fault for frame in frames if frame.fault), "")
        return replace(row, images=frames, fault=fault, num_frames=len(frames), video_is_folder=True)
    video, num_frames, after_draws = measure_video(reference, settings, storage)
    return replace(row, images=(video,), fault=video.fault, fault_after_draws=after_draws, num_frames=num_frames)


def _asks_too_much(row: IndexRow, pieces: Sequence[Piece]) -> Condition:
    """Whether placeholders, counted per turn, ask for more images than there are (of a video: told when drawn)."""
    if row.num_frames >= 0:
        return Condition.NONE
    used = in_turn = 0
    for element, _ in pieces:
        if element is Element.TURN:
            in_turn = 0
        elif element is Element.IMAGE:
            used += in_turn < len(row.images)
            in_turn += 1
    return Condition.PLACEHOLDERS if used > len(row.images) else Condition.NONE


def draw(
    row: IndexRow,
    row_id: RowId,
    group: GroupConfig,
    dataset: DatasetConfig,
    draws: Draws,
    tokenizer: Tokenizer,
    bake: BakeConfig | None = None,
) -> Sample | Dropped:
    """The conversation with its images as ViT items. See `pipeline.sources.draw`."""
    if row.fault and not row.fault_after_draws:
        return Dropped(reason=row.fault)
    numbers = range(len(row.images)) if row.num_frames < 0 else _choose_frames(row, group.frame_sampler, draws)
    if numbers is None or (row.num_frames > 0 and not row.video_is_folder and not numbers):
        return Dropped(reason="no_frame_count")
    if row.fault:
        return Dropped(reason=row.fault)
    is_video_file = row.num_frames >= 0 and not row.video_is_folder
    transform, num_images = group.image_transform, len(numbers)
    images: list[Item] = []
    num_tokens, conditions = 0, row.conditions
    for number in numbers:
        entry = row.images[0 if is_video_file else number]
        planned = plan_image(entry, transform, bake, num_images)
        images.append(image_item(ItemKind.VIT, number, planned, dataset))
        num_tokens += num_stride_cells(planned, transform)
        conditions |= entry.conditions | planned[2]
    items, num_text_tokens, too_many = _lay_out(row, images, tokenizer, bake)
    if too_many:
        return Dropped(reason="too_many_placeholders")
    if not any(map(_LOSS, items)):
        return Dropped(reason="no_loss")
    return sample_of(row_id, items, num_tokens + num_text_tokens, conditions, dataset, bake)


def _choose_frames(row: IndexRow, sampler: FrameSamplerConfig | None, draws: Draws) -> Sequence[int] | None:
    """Numbers of the frames drawn; None where the sampler's bounds leave nothing to draw from (or to space)."""
    sampler = sampler or FrameSamplerConfig()
    choose = choose_folder_frames if row.video_is_folder else choose_video_frames
    try:
        return choose(draws, sampler.min_num_frames, sampler.max_num_frames, row.num_frames)
    except ValueError:
        return None


def _lay_out(
    row: IndexRow, images: Sequence[Item], tokenizer: Tokenizer, bake: BakeConfig | None
) -> tuple[list[Item], int, bool]:
    """Items in order, their text tokens, and whether placeholders ask for more images than there are.

    The k-th placeholder of a turn becomes the next image while k < number of images, so two turns can ask for the same
    number again: the reference dies of that. Correction `placeholders` counts over the conversation.
    """
    corrections = bake.corrections if bake is not None else ()
    per_turn = "placeholders" not in corrections
    items: list[Item] = []
    num_text_tokens = used = in_turn = 0
    for element, text in _elements(row, len(images), tokenizer, keep_control_text="control_tokens" in corrections):
        if text is not None:
            items.append(text)
            num_text_tokens += text.num_tokens
        elif element == _TURN:
            in_turn = 0 if per_turn else in_turn
        elif element == _IMAGE:
            if in_turn < len(images):
                if used == len(images):
                    return items, num_text_tokens, True
                items.append(images[used])
                used += 1
            in_turn += 1
    return items, num_text_tokens, False


def _elements(
    row: IndexRow, num_images: int, tokenizer: Tokenizer, *, keep_control_text: bool
) -> Iterator[tuple[int, Item | None]]:
    """The row's elements with videos expanded to images, each text as its item."""
    elements = row.elements
    if row.texts:  # the first turn, whose pieces depend on the number of frames drawn
        for element, text in first_turn_pieces(elements[0] == Element.ANSWER, row.texts[0], num_images):
            token_ids = tuple(tokenizer.encode(text, keep_control_text=keep_control_text)) if text else ()
            loss = element is Element.ANSWER
            item = Item(kind=ItemKind.TEXT, loss=loss, num_tokens=len(token_ids), token_ids=token_ids)
            yield element, item if token_ids else None
        elements = elements[1:]
    text_number = 0
    for number in elements:
        if number in (_TEXT, _ANSWER):
            yield number, text_item(text_number, row.text_num_tokens[text_number], number == _ANSWER)
            text_number += 1
        elif number == _VIDEO:
            for _ in range(num_images):
                yield _IMAGE, None
        else:
            yield number, None
