"""A measured row whose texts are still to be tokenised, so that texts of many rows go through the tokenizer at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from pipeline.records import Condition, Element, IndexRow
from pipeline.sources.conversation import Piece
from pipeline.tokenizer import Tokenizer

__all__ = ["Draft", "finish_drafts"]

_BATCH_CHARACTERS = 1 << 20
_BATCH_ROWS = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A row before tokenising.

    Attributes:
        row: All of it but the texts.
        texts: Its texts; None for one that cannot be used (and then only that text is lost).
        keep_texts: Write the texts themselves into the index.
        pieces: `vlm_sft`: the elements; the texts of TEXT and ANSWER pieces are `texts`, in order.
        detail: What a person wants to see beside the fault.
    """

    row: IndexRow
    texts: Sequence[str | None] = ()
    keep_texts: bool = False
    pieces: Sequence[Piece] = ()
    detail: str = ""


def finish_drafts(
    drafts: Iterable[Draft], tokenizer: Tokenizer, *, keep_control_text: bool
) -> Iterator[tuple[IndexRow, str]]:
    """Index rows with token ids, in order, each with its draft's detail."""
    waiting: list[Draft] = []
    num_characters = 0
    for draft in drafts:
        waiting.append(draft)
        num_characters += sum(len(text) for text in draft.texts if text)
        if len(waiting) >= _BATCH_ROWS or num_characters >= _BATCH_CHARACTERS:
            yield from _finish(waiting, tokenizer, keep_control_text)
            waiting, num_characters = [], 0
    yield from _finish(waiting, tokenizer, keep_control_text)


def _finish(drafts: Sequence[Draft], tokenizer: Tokenizer, keep_control_text: bool) -> Iterator[tuple[IndexRow, str]]:
    usable = [text for draft in drafts for text in draft.texts if text is not None]
    encoded = iter(tokenizer.encode_batch(usable, keep_control_text=keep_control_text))
    for draft in drafts:
        token_ids = [next(encoded) if text is not None else None for text in draft.texts]
        conditions = draft.row.conditions
        if any(text is not None and tokenizer.spells_control_token(text) for text in draft.texts):
            conditions |= Condition.CONTROL_TOKENS
        if draft.pieces:
            yield _finish_conversation(draft, token_ids, conditions), draft.detail
        else:
            yield (
                replace(
                    draft.row,
                    conditions=int(conditions),
                    text_num_tokens=tuple(-1 if ids is None else len(ids) for ids in token_ids),
                    text_ids=tuple(ids or () for ids in token_ids),
                    texts=tuple(text or "" for text in draft.texts) if draft.keep_texts else draft.row.texts,
                ),
                draft.detail,
            )


def _finish_conversation(draft: Draft, token_ids: Sequence[list[int] | None], conditions: int) -> IndexRow:
    """Texts that tokenise to nothing leave the conversation; without an answer left there is nothing to learn."""
    elements: list[int] = []
    kept: list[list[int]] = []
    remaining = iter(token_ids)
    for number, (element, _) in enumerate(draft.pieces):
        is_late = number == 0 and bool(draft.row.texts)  # its text is known once the frames are drawn
        if element in (Element.TEXT, Element.ANSWER) and not is_late:
            ids = next(remaining)
            if not ids:
                continue
            kept.append(ids)
        elements.append(int(element))
    fault, after_draws = draft.row.fault, draft.row.fault_after_draws
    if not fault and Element.ANSWER not in elements:
        fault, after_draws = "no_loss", draft.row.num_frames >= 0
    return replace(
        draft.row,
        fault=fault,
        fault_after_draws=after_draws,
        conditions=int(conditions),
        elements=tuple(elements),
        text_num_tokens=tuple(len(ids) for ids in kept),
        text_ids=tuple(kept),
    )
