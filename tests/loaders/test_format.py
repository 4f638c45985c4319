"""Records are read strictly: what parses can be trusted."""

from __future__ import annotations

import dataclasses
import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loaders.format import (
    DatasetManifest,
    FormatError,
    LaneEntry,
    MemberEntry,
    Normalisation,
    PackEntry,
    PackHeader,
    Provenance,
    ShardEntry,
    Sidecar,
    parse_dataset_manifest,
    parse_pack_header,
    parse_sidecar,
    to_json,
)

HEADER = PackHeader(
    sequence_length=9,
    sample_lens=(9, 0),
    split_lens=(4, 5),
    attn_modes=("causal", "noise"),
    vae_image_sizes=((4, 8),),
    vae_image_index=(0,),
    vae_normalisation=(0,),
    patchified_vae_latent_shapes=((1, 2),),
    batch_data_indexes=({"data_indexes": [0, 1], "worker_id": 0, "dataset_name": "t2i"}, {}),
    provenance=(Provenance(source="t2i/a", path="ü.parquet", row=3),) * 2,
)
ARRAY = MemberEntry(offset=512, num_bytes=140, crc32=7, dtype="<i4", shape=(3,), data_offset=640)
SIDECAR = Sidecar(
    lane=0,
    shard=0,
    first_pack=0,
    num_packs=1,
    num_bytes=2048,
    sha256="ab",
    fingerprint="cd",
    packs=(PackEntry(key="00000-00000000", members={"packed_text_ids": ARRAY}),),
)
MANIFEST = DatasetManifest(
    recipe="bagel",
    stream="s",
    fingerprints={"config": "c"},
    world_size=1,
    num_workers=1,
    lanes=(LaneEntry(shards=(ShardEntry(num_packs=1, num_bytes=9, sha256="a", sidecar_sha256="b"),)),),
    use_flex=False,
    max_num_tokens=10,
    vit_patch_size=14,
    vae_image_downsample=16,
    pixels="raw",
    special_tokens={"bos_token_id": 1},
    vocab_size=5,
    normalisations=(Normalisation(mean=(0.5, 0.5, 0.5), std=(1.0, 1.0, 1.0)),),
    tokens={"total": 1},
    rows={"t2i/a": {"drawn": 1}},
    seed=1,
)


def test_records_come_back_as_they_were_written() -> None:
    assert parse_pack_header(to_json(HEADER)) == HEADER
    assert parse_sidecar(to_json(SIDECAR)) == SIDECAR
    assert parse_dataset_manifest(to_json(MANIFEST)) == MANIFEST


def altered(record: PackHeader | Sidecar | DatasetManifest, **changes: object) -> bytes:
    return json.dumps({**dataclasses.asdict(record), **changes}).encode()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff", "not readable JSON"),
        (b"[1]", "holds a JSON list"),
        (b'{"sequence_length": NaN}', "NaN is not a JSON number"),
        (b"[" * 100_000, "not readable JSON"),
        (altered(HEADER, sequence_length=True), "pack header.sequence_length is True where an integer belongs"),
        (altered(HEADER, vae_image_sizes=[[4, 8, 3]]), r"vae_image_sizes\[0\] is \[4, 8, 3\] where a list of 2"),
        (altered(HEADER, surprise=1), "unknown keys \\['surprise'\\]"),
        (altered(HEADER, attn_modes=["causal", "loud"]), "do not agree"),
        (altered(HEADER, split_lens=[9]), "do not agree"),
        (altered(HEADER, vae_image_index=[1]), "do not agree"),
        (altered(HEADER, sample_lens=[10, -1]), "do not agree"),
    ],
)
def test_a_wrong_header_is_refused_with_its_place(content: bytes, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        parse_pack_header(content)


@pytest.mark.parametrize(
    "change",
    [
        {"offset": -512},
        {"num_bytes": 3000},
        {"dtype": "<f8"},
        {"dtype": "|O"},
        {"shape": (4,)},
        {"shape": (-3,)},
        {"data_offset": 400},
        {"data_offset": 644},
    ],
)
def test_a_member_that_contradicts_itself_or_leaves_the_shard_is_refused(change: dict[str, object]) -> None:
    member = dataclasses.replace(ARRAY, **change)  # type: ignore[arg-type]
    pack = PackEntry(key="00000-00000000", members={"packed_text_ids": member})
    with pytest.raises(FormatError, match="member packed_text_ids of pack 00000-00000000"):
        parse_sidecar(to_json(dataclasses.replace(SIDECAR, packs=(pack,))))


def test_a_member_the_format_does_not_know_carries_no_array() -> None:
    pack = PackEntry(key="00000-00000000", members={"vit_000": ARRAY})
    with pytest.raises(FormatError, match="vit_000"):
        parse_sidecar(to_json(dataclasses.replace(SIDECAR, packs=(pack,))))


def test_a_sidecar_that_miscounts_its_packs_is_refused() -> None:
    with pytest.raises(FormatError, match="lists 1 packs and claims 2"):
        parse_sidecar(altered(SIDECAR, num_packs=2))


@pytest.mark.parametrize("record", [SIDECAR, MANIFEST])
def test_another_format_version_is_refused_before_anything_else(record: Sidecar | DatasetManifest) -> None:
    parse = parse_sidecar if isinstance(record, Sidecar) else parse_dataset_manifest
    with pytest.raises(FormatError, match="has format 2, this parbake reads format 1"):
        parse(altered(record, format=2, surprise=0))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.sampled_from([field.name for field in dataclasses.fields(Sidecar)]), json_values)
def test_whatever_stands_in_a_sidecar_it_parses_or_is_refused(name: str, value: object) -> None:
    with suppress(FormatError):
        parse_sidecar(altered(SIDECAR, **{name: value}))


@given(st.binary(max_size=60))
def test_whatever_the_bytes_are_nothing_but_a_format_error_is_raised(content: bytes) -> None:
    for parse in (parse_sidecar, parse_dataset_manifest, parse_pack_header):
        with pytest.raises(FormatError):
            parse(content)
