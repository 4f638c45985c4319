"""inputs.md, "Images": each is baked under both streams; pixels, reasons and counts are as they should be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.inputs.kitchen import STREAMS, Baked, Sources, bake, conversation
from tests.inputs.pictures import CASES
from tests.media.gallery import encode, reference_rgb

NAMES = list(CASES)
CORRECTED = {"EXIF", "ALPHA", "SIXTEEN_BIT", "TRUNCATED"}


def source_of(name: str) -> str:
    return f"vlm_sft/{NAMES.index(name)}"


@pytest.fixture(scope="module")
def baked(tmp_path_factory: pytest.TempPathFactory, tokenizer_folder: Path) -> Callable[[str], Baked]:
    """Every image in a source of its own: row 0 shows it, row 1 is a plain one."""
    sources = Sources(tmp_path_factory.mktemp("images"), tokenizer_folder)
    plain = sources.add_picture("plain.png", encode(Image.new("RGB", (56, 42), (1, 2, 3)), "PNG"))
    for number, case in enumerate(CASES.values()):
        rows = [sources.add_picture(f"{number}.img", case.encoded), plain]
        sources.add_lines(
            str(number), [{"image": image, "conversations": conversation("<image>What?")} for image in rows]
        )
    done: dict[str, Baked] = {}

    def baked_under(stream: str) -> Baked:
        if stream not in done:
            done[stream] = bake(sources, stream, tmp_path_factory.mktemp(stream))
        return done[stream]

    return baked_under


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("stream", STREAMS)
def test_image(stream: str, name: str, baked: Callable[[str], Baked]) -> None:
    case, bake = CASES[name], baked(stream)
    expected = case.improved if stream == "improved" and case.improved is not None else None
    if expected is None:
        expected = case.reference or reference_rgb(case.encoded)
    assert expected is not None, "the reference drops it: say under which reason"
    served = bake.served(source_of(name), 0)
    if isinstance(expected, str):
        assert served is None
        assert bake.dropped(source_of(name)) == {expected: 1}
        assert bake.reason(source_of(name), 0) == expected
        return
    assert bake.dropped(source_of(name)) == {}
    assert served is not None
    [shown] = served.pictures
    height, width = shown.shape[:2]
    assert min(height, width) >= 14, "at least one patch"
    resized = np.asarray(
        Image.fromarray(np.ascontiguousarray(expected)).resize((width, height), Image.Resampling.BICUBIC)
    )
    np.testing.assert_array_equal(shown, resized)
    assert bake.conditions(source_of(name), 0) == case.conditions


@pytest.mark.parametrize("name", [name for name in NAMES if CASES[name].conditions & CORRECTED])
def test_a_correction_changes_what_is_shown(name: str, baked: Callable[[str], Baked]) -> None:
    before, after = (baked(stream).served(source_of(name), 0) for stream in STREAMS)
    assert before is not None
    if after is not None:
        assert before.pictures[0].shape != after.pictures[0].shape or (before.pictures[0] != after.pictures[0]).any()


@pytest.mark.parametrize("stream", STREAMS)
def test_the_good_row_beside_each_is_there(stream: str, baked: Callable[[str], Baked]) -> None:
    for name in NAMES:
        served = baked(stream).served(source_of(name), 1)
        assert served is not None, name
        assert (served.pictures[0] == (1, 2, 3)).all()


@pytest.mark.parametrize("size", [(1, 4000), (10_000, 1)])
def test_a_side_longer_than_the_position_table_is_counted_by_the_reference_and_a_fault_of_the_improved_stream(
    size: tuple[int, int], tmp_path: Path, tokenizer_folder: Path
) -> None:
    sources = Sources(tmp_path, tokenizer_folder)
    images = [sources.add_picture(f"{size}.png", encode(Image.new("RGB", size), "PNG")) for size in (size, (56, 42))]
    sources.add_lines("lines", [{"image": image, "conversations": conversation("<image>What?")} for image in images])
    reference, improved = (
        bake(sources, stream, tmp_path / stream, dataset={"max_num_patch_per_side": 10}) for stream in STREAMS
    )
    assert reference.served("vlm_sft/lines", 0) is not None
    assert reference.conditions("vlm_sft/lines", 0) == {"ALIASED"}
    assert improved.served("vlm_sft/lines", 0) is None
    assert improved.dropped("vlm_sft/lines") == {"side_too_long": 1}
    assert improved.reason("vlm_sft/lines", 0) == "side_too_long"
