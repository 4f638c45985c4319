"""Damaged files: the index's verdict with `decode` is the reference's, although most of them are never decoded."""

from __future__ import annotations

import io
import random

import numpy as np
import pytest

from pipeline.media.decode import decode_rgb
from pipeline.media.faults import ImageFault
from pipeline.media.header import inspect_image
from tests.media.gallery import gallery, outcome, reference_rgb

NOTHING: frozenset[str] = frozenset()
NUM_MUTANTS = 250
MAX_PIXELS = 2_000_000  # a damaged header may claim any size; larger ones only cost time here

SEEDS = {
    "jpeg": ["baseline.jpg", "progressive.jpg", "grey.jpg", "cmyk.jpg", "restarts.jpg", "exif_6.jpg", "several.mpo"],
    "png": ["rgb.png", "rgba.png", "la_ink.png", "one_bit.png", "sixteen_bit.png", "late_text.png"],
    "palette_png": ["palette.png", "palette_alphas.png", "trns_rgb.png", "trns_grey.png", "animated.png"],
    "others": ["lossy.webp", "alpha.webp", "animated.gif", "plain.bmp", "sixteen_bit.tiff", "lies.ico"],
}


def mutant(encoded: bytes, draws: random.Random) -> bytes:
    """`encoded` with one to ten injuries, more of them near the head."""
    content = bytearray(encoded)
    for _ in range(draws.choice([1, 1, 1, 2, 4, 10])):
        if len(content) < 8:
            break
        place = int(len(content) * draws.random() ** draws.choice([1, 4]))
        match draws.randrange(7):
            case 0:
                content[place] = draws.randrange(256)
            case 1:
                content[place] ^= 1 << draws.randrange(8)
            case 2:
                del content[place:]
            case 3:
                del content[place : place + draws.choice([1, 2, 4, 50])]
            case 4:
                content[place:place] = draws.randbytes(draws.choice([1, 4, 20]))
            case 5:
                source = draws.randrange(len(content))
                content[place:place] = content[source : source + draws.choice([4, 12, 60, 300])]
            case 6:
                content[place : place + 2] = bytes([0xFF, draws.randrange(0xC0, 0xFF)])
    return bytes(content)


@pytest.mark.parametrize("kind", SEEDS)
def test_the_verdict_on_a_damaged_file_is_the_references(kind: str) -> None:
    images = gallery()
    draws = random.Random(kind)
    num_usable = 0
    for _ in range(NUM_MUTANTS):
        encoded = mutant(images[draws.choice(SEEDS[kind])], draws)
        claimed = inspect_image(encoded, corrections=NOTHING, decode=False)
        if claimed.width_px * claimed.height_px > MAX_PIXELS:
            continue
        expected = reference_rgb(encoded)
        entry = inspect_image(encoded, corrections=NOTHING, decode=True)
        assert entry == inspect_image(io.BytesIO(encoded), corrections=NOTHING, decode=True)
        assert (entry.fault == "") == (expected is not None), encoded.hex()
        if expected is None:
            with pytest.raises(ImageFault):
                decode_rgb(encoded, corrections=NOTHING)
            continue
        num_usable += 1
        assert (entry.height_px, entry.width_px) == expected.shape[:2], encoded.hex()
        np.testing.assert_array_equal(np.asarray(decode_rgb(encoded, corrections=NOTHING)), expected)
    assert num_usable > NUM_MUTANTS // 20


@pytest.mark.parametrize("kind", SEEDS)
def test_with_the_correction_index_and_render_refuse_the_same_cut_files(kind: str) -> None:
    images = gallery()
    draws = random.Random(kind + " cut")
    for _ in range(NUM_MUTANTS // 2):
        encoded = mutant(images[draws.choice(SEEDS[kind])], draws)
        entry = inspect_image(encoded, corrections={"truncated"}, decode=True)
        if entry.width_px * entry.height_px > MAX_PIXELS:
            continue
        promised = (entry.fault, entry.width_px, entry.height_px)
        assert promised == outcome(encoded, {"truncated"}), encoded.hex()
