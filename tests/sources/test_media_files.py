"""Media files stay inside their root, and every way of not being readable has a name."""

from __future__ import annotations

from pathlib import Path

import fsspec
import pytest

from pipeline.sources.media_files import MediaFault, locate, measure_file, measure_folder, measure_video, media_stamp
from pipeline.sources.settings import MeasureSettings
from pipeline.storage import FileIdentity, Storage
from tests.datamaker import encode, picture, write_frame_folder
from tests.datamaker.video import write_video


def settings_of_root(root: str, *, allow_outside: bool = False, decode: bool = True) -> MeasureSettings:
    return MeasureSettings(
        kind="vlm_sft",
        source="vlm_sft/one",
        root=root,
        corrections=(),
        decode=decode,
        improved=False,
        allow_outside=allow_outside,
        may_draw_no_frame=False,
    )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A media root with a picture in it, one beside it, and links of both kinds."""
    root = tmp_path / "media"
    (root / "sub").mkdir(parents=True)
    (root / "a.jpg").write_bytes(encode(picture(1, 40, 30)))
    (tmp_path / "secret.jpg").write_bytes(encode(picture(2, 20, 10)))
    (root / "inside.jpg").symlink_to(root / "a.jpg")
    (root / "escape.jpg").symlink_to(tmp_path / "secret.jpg")
    (root / "escape").symlink_to(tmp_path)
    (root / "loop.jpg").symlink_to(root / "loop.jpg")
    (root / "empty.jpg").touch()
    (root / "text.png").write_text("no picture")
    return root


@pytest.mark.parametrize(
    ("reference", "fault"),
    [
        ("a.jpg", ""),
        ("./sub/../a.jpg", ""),
        ("inside.jpg", ""),
        ("{root}/a.jpg", ""),
        ("../secret.jpg", "outside_root"),
        ("sub/../../secret.jpg", "outside_root"),
        ("{outside}/secret.jpg", "outside_root"),
        ("escape.jpg", "outside_root"),
        ("escape/secret.jpg", "outside_root"),
        ("/etc/passwd", "outside_root"),
        ("https://example.com/a.jpg", "missing_file"),
        ("file:///etc/passwd", "missing_file"),
        ("absent.jpg", "missing_file"),
        ("a.jpg/b.jpg", "missing_file"),
        ("sub", "missing_file"),
        ("", "missing_file"),
        ("loop.jpg", "missing_file"),
        ("x" * 5000, "missing_file"),
        ("nul\0byte", "bad_reference"),
        ("half \ud83d.jpg", "bad_reference"),
        ("empty.jpg", "zero_bytes"),
        ("text.png", "not_an_image"),
    ],
)
def test_what_a_row_may_name_and_what_not(root: Path, reference: str, fault: str) -> None:
    reference = reference.replace("{root}", str(root)).replace("{outside}", str(root.parent))
    entry = measure_file(reference, settings_of_root(str(root)), Storage())
    assert entry.fault == fault
    assert (entry.width_px, entry.height_px) == ((40, 30) if not fault else (0, 0))
    assert entry.reference == ("" if "\ud83d" in reference else reference)


def test_files_outside_are_read_where_that_is_allowed(root: Path) -> None:
    settings = settings_of_root(str(root), allow_outside=True)
    for reference in ["../secret.jpg", "escape.jpg", str(root.parent / "secret.jpg")]:
        assert measure_file(reference, settings, Storage()).width_px == 20


@pytest.mark.parametrize(
    ("reference", "url"),
    [
        ("a.jpg", "memory://bucket/media/a.jpg"),
        ("sub/./../a.jpg", "memory://bucket/media/a.jpg"),
        ("memory://bucket/media/a.jpg", "memory://bucket/media/a.jpg"),
        ("../a.jpg", None),
        ("/a.jpg", None),
        ("memory://bucket/other/a.jpg", None),
        ("s3://bucket/media/a.jpg", None),
        ("file:///etc/passwd", None),
        ("memory://bucket/media/../a.jpg", None),
    ],
)
def test_a_url_is_a_root_too(reference: str, url: str | None) -> None:
    if url is None:
        with pytest.raises(MediaFault, match="outside_root"):
            locate("memory://bucket/media", reference, Storage(), allow_outside=False)
    else:
        assert locate("memory://bucket/media/", reference, Storage(), allow_outside=False) == url


def test_pictures_on_an_object_store_are_measured(root: Path) -> None:
    content = (root / "a.jpg").read_bytes()
    with fsspec.open("memory://measured/a.jpg", "wb") as file:
        file.write(content)
    entry = measure_file("a.jpg", settings_of_root("memory://measured"), Storage())
    assert (entry.width_px, entry.height_px, entry.fault) == (40, 30, "")
    assert measure_file("b.jpg", settings_of_root("memory://measured"), Storage()).fault == "missing_file"


def test_frames_of_a_folder_come_in_frame_order_each_with_its_stamp(root: Path) -> None:
    write_frame_folder(root / "clip", 12)
    frames = measure_folder("clip/", settings_of_root(str(root)), Storage())
    assert len(frames) == 12
    assert [frame.reference for frame in frames] == sorted(
        (frame.reference for frame in frames), key=lambda name: int(name.rpartition("_")[2].removesuffix(".jpg"))
    )
    assert len({frame.stamp for frame in frames}) >= 1
    assert measure_folder("none/", settings_of_root(str(root)), Storage())[0].fault == "missing_file"
    assert measure_folder("../media/clip/", settings_of_root(str(root)), Storage())[0].fault == ""
    assert measure_folder("../", settings_of_root(str(root)), Storage())[0].fault == "outside_root"


def test_a_video_tells_its_frames_and_a_broken_one_when_it_breaks(root: Path) -> None:
    write_video(root / "clip.mp4", 7)
    entry, num_frames, after_draws = measure_video("clip.mp4", settings_of_root(str(root)), Storage())
    assert (entry.width_px, entry.height_px, num_frames, after_draws, entry.fault) == (64, 48, 7, False, "")
    entry, num_frames, after_draws = measure_video("a.jpg.mp4", settings_of_root(str(root)), Storage())
    assert (entry.fault, num_frames, after_draws) == ("missing_file", 0, False)
    entry, _, after_draws = measure_video("text.png", settings_of_root(str(root)), Storage())
    assert (entry.fault, after_draws) == ("decode_error", False)


def test_a_video_that_breaks_off_is_found_out_after_its_draws(root: Path) -> None:
    write_video(root / "clip.mp4", 7)
    content = bytearray((root / "clip.mp4").read_bytes())
    start, end = content.index(b"mdat") + 4, content.index(b"moov") - 4
    middle = start + 2 * (end - start) // 3
    content[middle:end] = bytes(end - middle)
    (root / "clip.mp4").write_bytes(content)
    entry, num_frames, after_draws = measure_video("clip.mp4", settings_of_root(str(root)), Storage())
    assert (num_frames, after_draws) == (7, bool(entry.fault))


def test_a_stamp_is_never_zero_and_follows_the_identity() -> None:
    stamps = {media_stamp(FileIdentity(num_bytes=n, stamp=stamp)) for n in range(3) for stamp in ("", "a")}
    assert len(stamps) == 6
    assert all(0 < stamp < 1 << 63 for stamp in stamps)
