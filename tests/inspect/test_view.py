"""From a pack's arrays to what it holds."""

from __future__ import annotations

import io
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from loaders.format import DatasetManifest, LaneEntry, PackHeader, Provenance
from pipeline.errors import Bug
from pipeline.inspect.console import print_pack, printable
from pipeline.inspect.dropped import with_dropped
from pipeline.inspect.page import page
from pipeline.inspect.view import PackView, view_pack
from pipeline.media.patches import patchify
from pipeline.records import Item, ItemKind, PlannedItem, PlannedSample, RowId

BOS, EOS, SOI, EOI = 90, 91, 92, 93

RED = np.full((4, 8, 3), (250, 0, 0), dtype=np.uint8)
BLUE = np.full((8, 4, 3), (0, 0, 250), dtype=np.uint8)


def manifest() -> DatasetManifest:
    return DatasetManifest(
        recipe="bagel",
        stream="s",
        fingerprints={},
        world_size=1,
        num_workers=1,
        lanes=(LaneEntry(shards=()),),
        use_flex=True,
        max_num_tokens=40,
        vit_patch_size=2,
        vae_image_downsample=4,
        pixels="raw",
        special_tokens={},
        vocab_size=100,
        normalisations=(),
        tokens={},
        rows={},
        seed=0,
    )


def pack() -> tuple[PackHeader, dict[str, Any]]:
    """Sample 0: text with loss (5), ViT image RED (2 + 8); sample 1: nothing; sample 2: VAE BLUE noised, clean."""
    header = PackHeader(
        sequence_length=23,
        sample_lens=(15, 0, 8),
        split_lens=(5, 10, 4, 4),
        attn_modes=("causal", "full", "noise", "full"),
        vit_image_sizes=((4, 8),),
        vit_normalisation=(0,),
        vae_image_sizes=((8, 4),),
        vae_image_index=(0, 0),
        vae_normalisation=(0,),
        patchified_vae_latent_shapes=((2, 1), (2, 1)),
        batch_data_indexes=({"data_indexes": [0, 0, 7]}, {"data_indexes": 3}, {"data_indexes": 4}),
        provenance=(
            Provenance(source="t2i/a", path="a.parquet", row=7),
            Provenance(source="vlm/b", path="b.jsonl", row=3),
            Provenance(source="vlm/b", path="b.jsonl", row=4),
        ),
    )
    arrays = {
        "packed_text_ids": np.array([BOS, 1, 2, 3, EOS, SOI, EOI, SOI, EOI, SOI, EOI], dtype=np.int32),
        "packed_text_indexes": np.array([0, 1, 2, 3, 4, 5, 14, 15, 18, 19, 22], dtype=np.int32),
        "packed_position_ids": np.array([0, 1, 2, 3, 4, *[5] * 10, *[0] * 4, *[0] * 4], dtype=np.int32),
        "packed_label_ids": np.array([1, 2, 3, EOS], dtype=np.int32),
        "ce_loss_indexes": np.array([0, 1, 2, 3], dtype=np.int32),
        "ce_loss_weights": np.full(4, 0.5, dtype=np.float32),
        "packed_vit_token_indexes": np.arange(6, 14, dtype=np.int32),
        "vit_pixels": patchify(RED, 2),
        "packed_vae_token_indexes": np.array([16, 17, 20, 21], dtype=np.int32),
        "packed_timesteps": np.array([0.25, 0.25, -np.inf, -np.inf], dtype=np.float32),
        "vae_pixels": BLUE.reshape(-1),
    }
    return header, arrays


def planned() -> list[PlannedSample]:
    """The plan of the pack: it also knows a sample that render left out, and a text that dropout took."""

    def sample(source: str, path: str, row: int, *items: PlannedItem) -> PlannedSample:
        row_id = RowId(source=source, path=path, row=row, unit="u", index_row=row)
        return PlannedSample(row=row_id, items=items, data_indexes="0", worker_id=0, dataset_name="d")

    text = Item(kind=ItemKind.TEXT, num_tokens=3, text=0)
    image = Item(kind=ItemKind.VIT, num_tokens=8, image=0, width_px=8, height_px=4)
    return [
        sample("t2i/a", "a.parquet", 7, PlannedItem(item=text), PlannedItem(item=image, kept=False)),
        sample("vlm/b", "b.jsonl", 9, PlannedItem(item=text)),
        sample("vlm/b", "b.jsonl", 3, PlannedItem(item=text, kept=False)),
        sample("vlm/b", "b.jsonl", 4, PlannedItem(item=image)),
    ]


def view(*, decode: bool = True, text: str = "") -> PackView:
    header, arrays = pack()
    decoder = (lambda ids: text or " ".join(f"<{token}>" for token in ids)) if decode else None
    samples = view_pack(header, arrays, manifest(), decoder)
    return PackView(
        bake="s3://bucket/bake",
        position=5,
        num_positions=9,
        lane=1,
        pack=2,
        sequence_length=23,
        max_num_tokens=40,
        samples=with_dropped(samples, planned()),
        removed=("vlm/b, b.jsonl, row 9: missing_file",),
        note="" if decode else "no tokenizer",
    )


def printed(pack: PackView) -> str:
    console = Console(file=io.StringIO(), width=160)
    print_pack(pack, console)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_every_sample_names_its_source_row_and_its_place_in_the_sequence() -> None:
    assert [(s.source, s.path, s.row, s.start, s.num_tokens, len(s.splits)) for s in view().samples] == [
        ("t2i/a", "a.parquet", 7, 0, 15, 2),
        ("vlm/b", "b.jsonl", 3, 15, 0, 0),
        ("vlm/b", "b.jsonl", 4, 15, 8, 2),
    ]


def test_splits_say_what_they_stand_for_how_they_attend_and_where_they_lie() -> None:
    splits = [split for sample in view().samples for split in sample.splits]

    assert [(s.kind, s.mode, s.start, s.end, s.first_position, s.last_position) for s in splits] == [
        ("text", "causal", 0, 5, 0, 4),
        ("vit", "full", 5, 15, 5, 5),
        ("vae", "noise", 15, 19, 0, 0),
        ("vae", "full", 19, 23, 0, 0),
    ]


def test_a_text_is_decoded_and_its_loss_counted() -> None:
    text = view().samples[0].splits[0]

    assert text.text == "<90> <1> <2> <3> <91>"
    assert (text.num_loss_tokens, text.loss_weight) == (4, 2.0)


def test_pictures_come_back_as_they_were_stored_and_a_shared_one_is_the_same() -> None:
    red = view().samples[0].splits[1]
    first, second = view().samples[2].splits

    assert red.pixels is not None
    assert first.pixels is not None
    assert np.array_equal(red.pixels, RED)
    assert red.grid == (2, 4)
    assert np.array_equal(first.pixels, BLUE)
    assert first.grid == (2, 1)
    assert first.stored_picture == second.stored_picture == 0


def test_a_pack_without_a_modality_has_none_of_its_splits() -> None:
    header = PackHeader(
        sequence_length=5,
        sample_lens=(5,),
        split_lens=(2, 3),
        attn_modes=("causal", "noise"),
        vit_image_sizes=(),
        vit_normalisation=(),
        vae_image_sizes=((4, 4),),
        vae_image_index=(0,),
        vae_normalisation=(0,),
        patchified_vae_latent_shapes=((1, 1),),
        batch_data_indexes=({"data_indexes": 0},),
        provenance=(Provenance(source="t2i/a", path="a.parquet", row=0),),
    )
    arrays = {
        "packed_text_ids": np.array([BOS, EOS, SOI, EOI], dtype=np.int32),
        "packed_text_indexes": np.array([0, 1, 2, 4], dtype=np.int32),
        "packed_position_ids": np.array([0, 1, 2, 2, 2], dtype=np.int32),
        "packed_vae_token_indexes": np.array([3], dtype=np.int32),
        "packed_timesteps": np.array([0.5], dtype=np.float32),
        "vae_pixels": np.zeros(48, dtype=np.uint8),
    }

    [sample] = view_pack(header, arrays, manifest(), None)
    assert [split.kind for split in sample.splits] == ["text", "vae"]

    only_text = replace(
        header,
        sequence_length=2,
        sample_lens=(2,),
        split_lens=(2,),
        attn_modes=("causal",),
        vae_image_sizes=(),
        vae_image_index=(),
    )
    texts = {"packed_text_ids": np.array([BOS, EOS]), "packed_text_indexes": np.array([0, 1])}
    [sample] = view_pack(only_text, {**texts, "packed_position_ids": np.array([0, 1])}, manifest(), None)
    assert [split.kind for split in sample.splits] == ["text"]


def test_only_a_noised_image_has_a_timestep() -> None:
    first, second = view().samples[2].splits

    assert first.timestep == 0.25
    assert math.isnan(second.timestep)


def test_what_condition_dropout_took_is_told_by_the_plan() -> None:
    assert [sample.dropped for sample in view().samples] == [("ViT image of 8x4 px",), ("text of 3 tokens",), ()]


def test_without_a_plan_nothing_is_said_of_dropped_items() -> None:
    header, arrays = pack()
    samples = view_pack(header, arrays, manifest(), None)

    assert with_dropped(samples, ()) == samples


def test_splits_that_do_not_add_up_are_refused() -> None:
    header, arrays = pack()
    broken = PackHeader(
        sequence_length=24, sample_lens=(24,), split_lens=header.split_lens, attn_modes=header.attn_modes
    )

    with pytest.raises(Bug, match="hold 23 tokens, the pack 24"):
        view_pack(broken, arrays, manifest(), None)


def test_the_terminal_shows_rows_texts_sizes_and_losses() -> None:
    shown = printed(view())

    for words in (
        "position 5 of 9: lane 1, pack 2",
        "23 of 40 tokens (57.5%)",
        "sample 0: t2i/a, a.parquet, row 7 (tokens 0 to 14)",
        "<90> <1> <2> <3> <91>",
        "CE on 4, weight 2",
        "8x4 px, 2x4 cells",
        "MSE, timestep 0.25",
        "dropped as a condition: text of 3 tokens",
        "left out by render: vlm/b, b.jsonl, row 9: missing_file",
    ):
        assert words in shown


def test_without_a_tokenizer_the_ids_are_shown_and_the_reason() -> None:
    shown = printed(view(decode=False))

    assert "90 1 2 3 91" in shown
    assert "no tokenizer" in shown


def test_a_text_cannot_steer_the_terminal() -> None:
    assert "\x1b" not in printed(view(text="\x1b[2J[red]gone[/red]"))
    assert "[red]gone" in printed(view(text="\x1b[2J[red]gone[/red]"))
    assert printable("a\x1b\nß") == "a\\x1b\nß"


def test_the_page_escapes_texts_and_embeds_pictures() -> None:
    html = page(view(text="<script>alert(1)</script>"))

    assert "<script>" not in html
    assert "&lt;script&gt;" in html
    assert html.count("data:image/png;base64,") == 3
    assert "http" not in html


def test_the_page_shows_ids_where_there_is_no_tokenizer() -> None:
    assert "90 1 2 3 91" in page(view(decode=False))
