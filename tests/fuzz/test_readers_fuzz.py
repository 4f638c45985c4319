"""Sidecars, `dataset.json`, plans, configurations and parquet files from strangers: read or refused, nothing else."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loaders.errors import FormatError
from loaders.format import parse_dataset_manifest, parse_pack_header, parse_sidecar
from pipeline.configuration.reader import load_config
from pipeline.errors import ParbakeError
from pipeline.index_table import source_index_from_json
from pipeline.plan_table import manifest_from_json
from tests.laws.reading import raw_packs
from tests.parity.baking import bake

QUICK = settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
VALUES = st.sampled_from(
    [None, True, -1, 0, 1, 10**30, 1.5, float("nan"), "", "x", "<f4", [], [-1], [[]], {}, {"a": 1}, "../../x", "\ud800"]
)


@pytest.fixture(scope="module")
def documents(demo_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """One of each, from a small bake."""
    config = demo_folder / "config.yaml"
    folder = bake(config, f"bake.output={tmp_path_factory.mktemp('bake')}", "bake.length={packs_per_lane: 2}")
    pack = next(iter(raw_packs(folder)))
    return {
        "dataset": (folder / "dataset.json").read_bytes(),
        "sidecar": (folder / "shards" / "lane-00000" / "000000.json").read_bytes(),
        "header": json.dumps(pack.header).encode(),
        "plan": (folder / "plan" / "plan.json").read_bytes(),
        "source": next((folder / "index").glob("*/source.json")).read_bytes(),
    }


READERS: dict[str, tuple[Callable[[bytes], object], tuple[type[Exception], ...]]] = {
    "dataset": (parse_dataset_manifest, (FormatError,)),
    "sidecar": (parse_sidecar, (FormatError,)),
    "header": (parse_pack_header, (FormatError,)),
    "plan": (manifest_from_json, (ParbakeError,)),
    "source": (source_index_from_json, (ValueError,)),
}


def changed(value: Any, draws: Any) -> Any:
    """The document with one value at a random place replaced, removed or added."""
    document = copy.deepcopy(value)
    place = document
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            return document
        key = draws.draw(st.sampled_from(keys))
        if isinstance(place[key], dict | list) and place[key] and draws.draw(st.booleans()):
            place = place[key]
            continue
        if isinstance(place, dict) and draws.draw(st.booleans()):
            del place[key]
        else:
            place[key] = draws.draw(VALUES)
        return document


@pytest.mark.parametrize("kind", READERS)
@QUICK
@given(draws=st.data())
def test_a_document_with_a_wrong_value_is_read_or_refused(kind: str, draws: Any, documents: dict[str, bytes]) -> None:
    reader, refusals = READERS[kind]
    content = json.dumps(changed(json.loads(documents[kind]), draws)).encode()
    with suppress(*refusals):
        reader(content)


@pytest.mark.parametrize("kind", READERS)
@QUICK
@given(content=st.binary(max_size=300), cut=st.floats(0, 1))
def test_any_bytes_are_refused(kind: str, content: bytes, cut: float, documents: dict[str, bytes]) -> None:
    reader, refusals = READERS[kind]
    whole = documents[kind]
    for damaged in (content, whole[: int(cut * len(whole))] + content):
        try:
            reader(damaged)
        except refusals:
            continue
        json.loads(damaged)  # it was read, so it must be a document


class Payload:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.write_text, (self.path, "executed"))


@pytest.mark.parametrize(
    "text",
    [
        "dataset: !!python/object/apply:os.system ['touch {marker}']\n",
        "dataset: !!python/object/new:subprocess.check_output [['touch', '{marker}']]\n",
        "!!python/module:os\n",
        "a: &a [*a, *a]\n",
        "a: &a [1,1,1,1,1,1,1,1,1]\n"
        + "".join(f"{c}: &{c} [{','.join(['*' + p] * 9)}]\n" for p, c in zip("abcdefgh", "bcdefghi", strict=True)),
        "[" * 2000,
        "{? {? {? a",
        "a: \0",
    ],
    ids=["apply", "new", "module", "itself", "laughs", "deep", "unfinished", "nul"],
)
def test_a_malicious_configuration_is_refused_and_does_nothing(text: str, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    path = tmp_path / "config.yaml"
    path.write_text(text.replace("{marker}", str(marker)))
    with pytest.raises(ParbakeError):
        load_config(str(path))
    assert not marker.exists()


def test_a_parquet_file_with_pickles_in_it_is_only_bytes(tmp_path: Path, tokenizer_folder: Path) -> None:
    """Pickled metadata, extension types and cells stay what they are."""
    from tests.inputs.kitchen import Sources
    from tests.inputs.kitchen import bake as bake_sources
    from tests.inputs.test_parquet import GOOD_CAPTIONS, PNG

    marker = tmp_path / "marker"
    evil = pickle.dumps(Payload(marker))
    field = pa.field(
        "image",
        pa.binary(),
        metadata={b"ARROW:extension:name": b"arrow.py_extension_type", b"ARROW:extension:metadata": evil},
    )
    schema = pa.schema([field, pa.field("captions", pa.string())], metadata={b"pandas": evil, b"huggingface": evil})
    table = pa.table([pa.array([PNG, evil]), pa.array([GOOD_CAPTIONS] * 2)], schema=schema)
    sources = Sources(tmp_path, tokenizer_folder)
    sources.add_parquet("t2i_pretrain", "it", {"a.parquet": table})
    done = bake_sources(sources, "improved", tmp_path / "out")
    assert done.dropped("t2i_pretrain/it") == {"not_an_image": 1}
    assert not marker.exists()
    assert pq.read_schema(tmp_path / "t2i_pretrain" / "it" / "a.parquet").metadata is not None
