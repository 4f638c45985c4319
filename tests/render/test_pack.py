"""One pack from planned samples and pictures."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from loaders.format import Normalisation
from pipeline.errors import RunFailed, SourceError
from pipeline.media.patches import patchify
from pipeline.records import ImageEntry, IndexRow, Item, ItemKind, PlannedItem, PlannedPack, PlannedSample, RowId
from pipeline.render.layout import LayoutRules
from pipeline.render.normalisation import Normalisations
from pipeline.render.pack import PackRules, render_pack
from pipeline.sources.reader import Picture

LAYOUT = LayoutRules(
    bos_token_id=1001,
    eos_token_id=1002,
    start_of_image=1003,
    end_of_image=1004,
    vit_patch_px=14,
    vit_max_per_side=70,
    vae_cell_px=16,
    vae_max_per_side=32,
    interpolate_pos=False,
)
NORMALISATIONS = Normalisations(
    table=(Normalisation(mean=(0.5,) * 3, std=(0.5,) * 3), Normalisation(mean=(0.4,) * 3, std=(0.3,) * 3)),
    numbers={("g/d", ItemKind.VAE): 0, ("g/d", ItemKind.VIT): 1},
)
RAW = PackRules(layout=LAYOUT, normalisations=NORMALISATIONS, corrections=frozenset(), webp=False)
WEBP = PackRules(layout=LAYOUT, normalisations=NORMALISATIONS, corrections=frozenset(), webp=True)


def png(width_px, height_px, seed):
    """A noisy PNG."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height_px, width_px, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


class Shelf:
    """A reader whose pictures are in memory, by (row, image); remembers what it was asked for."""

    def __init__(self, encoded):
        self.encoded = encoded
        self.asked = []

    def pictures(self, requests):
        keys = [(request.row_id.row, request.image) for request in requests]
        self.asked += keys
        return [Picture(encoded=self.encoded[key]) for key in keys]


def text(num_tokens, **item):
    return PlannedItem(item=Item(kind=ItemKind.TEXT, num_tokens=num_tokens, **{"text": 0, **item}))


def image(kind, number, width_px, height_px, *, timestep=None, kept=True):
    cell_px = 14 if kind is ItemKind.VIT else 16
    item = Item(
        kind=kind,
        loss=timestep is not None,
        num_tokens=(width_px // cell_px) * (height_px // cell_px),
        image=number,
        width_px=width_px,
        height_px=height_px,
    )
    return PlannedItem(item=item, kept=kept, timestep=float("nan") if timestep is None else timestep)


def edit_sample(row):
    """Source, instruction, target, the target again as condition on both towers, instruction, final target."""
    return sample(
        row,
        image(ItemKind.VAE, 0, 48, 32),
        image(ItemKind.VIT, 0, 42, 28),
        text(3),
        image(ItemKind.VAE, 1, 48, 32, timestep=0.5),
        image(ItemKind.VAE, 1, 48, 32),
        image(ItemKind.VIT, 1, 42, 28),
        text(3),
        image(ItemKind.VAE, 2, 48, 32, timestep=-0.25),
    )


def sample(row, *items):
    row_id = RowId(source="g/d", path="a.parquet", row=row, unit="a.parquet", index_row=row)
    return PlannedSample(row=row_id, items=items, data_indexes=f"[0, {row}]", worker_id=0, dataset_name="g")


def pack(*samples):
    return PlannedPack(lane=2, pack=5, shard=0, sequence_length=0, pixel_bytes=0, samples=samples)


def rows_of(*samples, size=(60, 40), num_images=3):
    entries = (ImageEntry(width_px=size[0], height_px=size[1]),) * num_images
    return {one.row: IndexRow(row=one.row.row, images=entries, text_ids=((7, 8, 9),), num_frames=-1) for one in samples}


def shelf(*rows, size=(60, 40)):
    return Shelf({(row, number): png(*size, seed=10 * row + number) for row in rows for number in range(3)})


def resized(encoded, width_px, height_px):
    return np.asarray(Image.open(io.BytesIO(encoded)).resize((width_px, height_px), Image.Resampling.BICUBIC))


def test_an_image_that_appears_twice_is_stored_once_and_decoded_once():
    one, other = edit_sample(0), edit_sample(1)
    reader = shelf(0, 1)
    made = render_pack(pack(one, other), rows_of(one, other), reader, RAW)
    assert made.header.vae_image_index == (0, 1, 1, 2, 3, 4, 4, 5)
    assert made.header.vae_image_sizes == ((32, 48),) * 6
    assert made.header.patchified_vae_latent_shapes == ((2, 3),) * 8
    assert reader.asked == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    stored = [resized(reader.encoded[row, number], 48, 32).reshape(-1) for row in (0, 1) for number in range(3)]
    assert np.array_equal(made.arrays["vae_pixels"], np.concatenate(stored))


def test_vit_pixels_are_the_patches_of_every_vit_image_of_the_batch():
    one = edit_sample(0)
    reader = shelf(0)
    made = render_pack(pack(one), rows_of(one), reader, RAW)
    patches = [patchify(resized(reader.encoded[0, number], 42, 28), 14) for number in (0, 1)]
    assert np.array_equal(made.arrays["vit_pixels"], np.concatenate(patches))
    assert made.header.vit_image_sizes == ((28, 42), (28, 42))
    assert (made.header.vit_normalisation, made.header.vae_normalisation) == ((1, 1), (0, 0, 0))


def test_webp_pictures_hold_the_raw_pixels():
    one, other = edit_sample(0), edit_sample(1)
    raw = render_pack(pack(one, other), rows_of(one, other), shelf(0, 1), RAW)
    webp = render_pack(pack(one, other), rows_of(one, other), shelf(0, 1), WEBP)
    assert webp.header == raw.header
    assert raw.arrays.keys() - webp.arrays.keys() == {"vit_pixels", "vae_pixels"}
    decoded = {
        name: np.asarray(Image.open(io.BytesIO(encoded)).convert("RGB")) for name, encoded in webp.pictures.items()
    }
    assert list(decoded) == [f"vit_{number:03d}" for number in range(4)] + [f"vae_{number:03d}" for number in range(6)]
    vit = np.concatenate([patchify(pixels, 14) for name, pixels in decoded.items() if name.startswith("vit")])
    vae = np.concatenate([pixels.reshape(-1) for name, pixels in decoded.items() if name.startswith("vae")])
    assert np.array_equal(vit, raw.arrays["vit_pixels"])
    assert np.array_equal(vae, raw.arrays["vae_pixels"])


def test_a_damaged_image_takes_its_sample_out_of_the_pack_and_moves_nothing_else():
    samples = [edit_sample(row) for row in range(3)]
    reader = shelf(0, 1, 2)
    reader.encoded[1, 2] = b"not an image"
    made = render_pack(pack(*samples), rows_of(*samples), reader, RAW)
    without = render_pack(pack(samples[0], samples[2]), rows_of(*samples), reader, RAW)
    assert made.header == without.header
    assert made.arrays.keys() == without.arrays.keys()
    assert all(np.array_equal(array, without.arrays[name]) for name, array in made.arrays.items())
    (drop,) = made.drops
    assert (drop.pack, drop.source, drop.path, drop.row, drop.reason) == (5, "g/d", "a.parquet", 1, "not_an_image")
    assert [entry["data_indexes"] for entry in made.header.batch_data_indexes] == [[0, 0], [0, 2]]


def test_an_image_of_another_size_than_indexed_is_a_fault_of_its_sample():
    one, other = edit_sample(0), edit_sample(1)
    reader = shelf(0, 1)
    reader.encoded[0, 1] = png(61, 40, seed=1)
    made = render_pack(pack(one, other), rows_of(one, other), reader, RAW)
    assert [(drop.row, drop.reason) for drop in made.drops] == [(0, "size_changed")]


def test_an_image_that_dropout_removed_is_not_even_read():
    one = sample(0, image(ItemKind.VIT, 0, 42, 28, kept=False), text(3), image(ItemKind.VAE, 1, 48, 32, timestep=1.0))
    reader = shelf(0)
    made = render_pack(pack(one), rows_of(one), reader, RAW)
    assert reader.asked == [(0, 1)]
    assert "vit_pixels" not in made.arrays


def test_a_pack_left_without_a_sample_is_an_error_that_names_the_rows():
    one = edit_sample(0)
    reader = shelf(0)
    reader.encoded[0, 0] = b""
    with pytest.raises(SourceError, match=r"pack 5 of lane 2 has no token left .* a\.parquet row 0 \(zero_bytes\)"):
        render_pack(pack(one), rows_of(one), reader, RAW)


def test_a_pack_left_without_a_loss_is_an_error():
    one, other = edit_sample(0), sample(1, text(3))
    reader = shelf(0)
    reader.encoded[0, 0] = b""
    with pytest.raises(SourceError, match="no token with a loss left"):
        render_pack(pack(one, other), rows_of(one, other), reader, RAW)


def test_a_text_composed_by_the_plan_brings_its_own_ids():
    one = sample(0, text(2, text=-1, token_ids=(21, 22)), image(ItemKind.VAE, 0, 48, 32, timestep=1.0))
    made = render_pack(pack(one), rows_of(one), shelf(0), RAW)
    assert made.arrays["packed_text_ids"].tolist() == [1001, 21, 22, 1002, 1003, 1004]


def test_token_ids_that_do_not_fit_the_plan_stop_the_run():
    one = sample(0, text(2), image(ItemKind.VAE, 0, 48, 32, timestep=1.0))
    with pytest.raises(RunFailed, match="3 tokens in the index and 2 in the plan"):
        render_pack(pack(one), rows_of(one), shelf(0), RAW)


def test_the_frames_of_a_video_file_share_one_index_entry():
    one = sample(0, text(3), image(ItemKind.VIT, 17, 42, 28), text(3, loss=True))
    rows = {
        one.row: IndexRow(row=0, images=(ImageEntry(width_px=60, height_px=40),), num_frames=20, text_ids=((7, 8, 9),))
    }
    made = render_pack(pack(one), rows, Shelf({(0, 17): png(60, 40, seed=3)}), RAW)
    assert made.header.vit_image_sizes == ((28, 42),)
    assert made.tokens == {"total": 5 + 8 + 5, "text": 12, "vit": 6, "vae": 0}
