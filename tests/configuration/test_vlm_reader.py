"""VLM recipes in AutoModel's spelling: which sources, lengths and packs they ask for, and how mistakes are told."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.config import Config
from pipeline.configuration.reader import Flags, load_config, resolved_yaml
from pipeline.errors import ConfigError
from pipeline.vlm_config import ShareGptConfig, VlmConfig

Load = Callable[..., VlmConfig]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Writes sections over a small recipe (dotted keys) and reads them; None removes a section."""
    (tmp_path / "processor").mkdir()
    (tmp_path / "rows.jsonl").write_text("")
    (tmp_path / "media").mkdir()
    meta = {"shapes": {"file_name": "rows.jsonl", "media_dir": "media"}}
    (tmp_path / "meta.json").write_text(json.dumps(meta))

    def write(overrides: tuple[str, ...] = (), flags: Flags | None = None, **sections: Any) -> VlmConfig:
        content: dict[str, Any] = {
            "recipe": "FinetuneRecipeForVLM",
            "model": {"pretrained_model_name_or_path": str(tmp_path / "processor"), "torch_dtype": "bfloat16"},
            "dataset": {
                "_target_": "nemo_automodel.components.datasets.vlm.datasets.make_meta_dataset",
                "path_or_dataset": str(tmp_path / "meta.json"),
            },
            "bake": {"output": "/out"},
        }
        for name, value in sections.items():
            first, _, second = name.partition("__")
            if second:
                content.setdefault(first, {})[second] = value
            else:
                content[first] = value
        path = tmp_path / "recipe.yaml"
        path.write_text(yaml.safe_dump({name: value for name, value in content.items() if value is not None}))
        config = load_config(str(path), overrides, flags)
        assert isinstance(config, VlmConfig)
        return config

    return write


@pytest.mark.parametrize(
    "recipe",
    [
        "FinetuneRecipeForVLM",
        "nemo_automodel.recipes.vlm.finetune.FinetuneRecipeForVLM",
        {"_target_": "nemo_automodel.recipes.vlm.finetune.FinetuneRecipeForVLM"},
    ],
)
def test_a_vlm_recipe_is_known_by_its_name(load: Load, recipe: Any) -> None:
    config = load(recipe=recipe)
    assert config.recipe == "vlm"
    assert config.seed == 42


def test_bake_recipe_asks_for_the_vlm_recipe_too(load: Load) -> None:
    assert load(recipe=None, bake__recipe="vlm").recipe == "vlm"
    assert load(("bake.recipe=vlm",), recipe="SomethingElse").recipe == "vlm"
    with pytest.raises(ConfigError, match=r"bake\.recipe' is 'vml'.*'bagel' or 'vlm'"):
        load(bake__recipe="vml")


def test_a_meta_file_gives_its_data_sets_in_the_order_of_their_names(load: Load, tmp_path: Path) -> None:
    meta = {
        "b": {"file_name": "rows.jsonl", "sample_ratio": 0.5, "media_dir": str(tmp_path / "media")},
        "a": {
            "file_name": "/data/rows.json",
            "columns": {"messages": "conversations"},
            "tags": {"role_tag": "from", "user_tag": "human"},
            "comment": "from another tool",
        },
    }
    (tmp_path / "meta.json").write_text(json.dumps(meta))
    first, second = load().sources
    assert (first.name, first.path) == ("a", "/data/rows.json")
    assert first.form == ShareGptConfig(messages="conversations", role_tag="from", user_tag="human")
    assert first.media_dir == str(Path.cwd())  # as in the reference
    assert (second.name, second.path, second.sample_ratio) == ("b", str(tmp_path / "rows.jsonl"), 0.5)
    assert second.media_dir == str(tmp_path / "media")
    assert [source.name for source in load(dataset__dataset_names=["b"]).sources] == ["b"]


def test_a_media_folder_is_looked_for_beside_the_meta_file(load: Load, tmp_path: Path) -> None:
    assert load().sources[0].media_dir == str(tmp_path / "media")


@pytest.mark.parametrize(
    ("target", "kind", "path"),
    [
        ("make_cord_v2_dataset", "cord_v2", "naver-clova-ix/cord-v2"),
        ("x.y.CordV2DatasetConfig", "cord_v2", "naver-clova-ix/cord-v2"),
        ("make_rdr_dataset", "rdr", "quintend/rdr-items"),
        ("UnimmChatDatasetConfig", "unimm_chat", "Yirany/UniMM-Chat"),
    ],
)
def test_hub_targets_have_the_references_defaults(load: Load, target: str, kind: str, path: str) -> None:
    (source,) = load(dataset={"_target_": target}).sources
    assert (source.kind, source.path, source.split) == (kind, path, "train")


def test_cord_takes_a_limit_and_rdr_does_not(load: Load) -> None:
    (source,) = load(dataset={"_target_": "make_cord_v2_dataset", "limit_dataset_samples": 7}).sources
    assert source.limit == 7
    with pytest.raises(ConfigError, match=r"dataset\.limit_dataset_samples' is no known key"):
        load(dataset={"_target_": "make_rdr_dataset", "limit_dataset_samples": 7})


def test_the_mock_target_has_its_own_fields(load: Load) -> None:
    section = {"_target_": "build_mock_vlm_dataset", "num_samples": 3, "image_size": [64, 32], "max_length": 50}
    config = load(dataset=section)
    mock = config.sources[0].mock
    assert mock is not None
    assert (mock.num_samples, mock.image_size, mock.max_length) == (3, (64, 32), 50)
    assert (config.max_length, config.truncation) == (50, "tokens")


def test_a_nemotron_set_is_a_folder_a_url_or_a_hub_id(load: Load, tmp_path: Path) -> None:
    def path(given: str) -> str:
        section = {"_target_": "nemotron_vlm", "path_or_dataset": given, "subsets": ["wiki_en"]}
        return load(dataset=section).sources[0].path

    assert path("nvidia/Nemotron-VLM-Dataset-v2") == "hf://datasets/nvidia/Nemotron-VLM-Dataset-v2"
    assert path("s3://bucket/nemotron/") == "s3://bucket/nemotron"
    assert path(str(tmp_path)) == str(tmp_path)


def test_modelopts_sampling_needs_a_number_and_replaces_nothing(load: Load) -> None:
    section = {"_target_": "nemotron_vlm", "path_or_dataset": "a/b", "subsets": ["x"], "sampling": "reference"}
    with pytest.raises(ConfigError, match=r"dataset\.num_samples' is 0"):
        load(dataset=section)
    config = load(dataset={**section, "num_samples": 5})
    assert config.bake.on_bad_row == "drop"


def test_lengths_follow_automodels_rules(load: Load) -> None:
    plain = load()
    assert (plain.max_length, plain.truncation, plain.packing, plain.pack_size) == (None, "off", "none", None)
    cut = load(dataset__max_length=100)
    assert (cut.max_length, cut.truncation) == (100, "tokens")
    assert load(dataset__max_length=100, dataset__truncate=False).truncation == "off"
    assert load(dataset__max_length=100, dataset__pretokenize=False).max_length is None
    packed = load(dataset__max_length=100, packed_sequence={"pack_size": 400})
    assert (packed.packing, packed.pack_size, packed.max_length, packed.truncation) == ("neat", 400, 100, "tokens")
    assert load(packed_sequence={"pack_size": 400, "max_length": 90}).truncation == "off"
    assert load(packed_sequence={"pack_size": 0}).packing == "none"
    assert load(packed_sequence={"packed_sequence_size": 0}).packing == "none"


def test_the_older_place_of_packing_is_read(load: Load) -> None:
    config = load(dataset__max_length=128, dataset__packing={"enabled": True, "packing_ratio": 0.9})
    assert (config.packing, config.pack_size, config.packing_ratio) == ("neat", 128, 0.9)
    with pytest.raises(ConfigError, match="AutoModel refuses that"):
        load(dataset__packing={"enabled": True})


def test_the_improved_stream_sets_its_own_switches(load: Load) -> None:
    config = load(dataset__max_length=100, packed_sequence={"pack_size": 400}, bake__stream="improved")
    assert (config.packing, config.truncation, config.bake.on_bad_row) == ("best_fit", "turns", "drop")
    assert (config.bake.corrections, config.bake.check_images) == (("exif", "alpha", "sixteen_bit"), "header")
    assert (
        load(packed_sequence={"pack_size": 400}, bake={"output": "x", "stream": "improved", "packing": "neat"}).packing
        == "neat"
    )


def test_a_bad_row_may_be_cut_at_the_end_of_a_turn(load: Load) -> None:
    config = load(dataset__max_length=100, bake={"output": "x", "on_bad_row": "truncate"})
    assert (config.bake.on_bad_row, config.truncation) == ("drop", "turns")


def test_context_parallel_batches_have_document_numbers(load: Load) -> None:
    packed = {"pack_size": 400, "packing_format": "thd", "collate_max_length": 400}
    config = load(distributed={"cp_size": 2, "strategy": "fsdp2"}, packed_sequence=packed)
    assert (config.cp_size, config.mask, config.sequence_alignment) == (2, "document", 4)
    with pytest.raises(ConfigError, match="multiple of 2"):
        load(distributed={"cp_size": 2}, packed_sequence={**packed, "collate_max_length": 402})


def test_flags_and_overrides_reach_the_recipe(load: Load) -> None:
    config = load(("packed_sequence.pack_size=64",), Flags(output="/elsewhere", world_size=4, executor="inline"))
    assert (config.pack_size, config.bake.output, config.num_lanes, config.bake.executor) == (
        64,
        "/elsewhere",
        4,
        "inline",
    )


def test_a_chat_template_may_be_a_file(load: Load, tmp_path: Path) -> None:
    (tmp_path / "template.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    assert load(dataset__chat_template=str(tmp_path / "template.json")).chat_template == "{{ messages }}"
    assert load(dataset__chat_template="{% x %}").chat_template == "{% x %}"


@pytest.mark.parametrize(
    ("sections", "told"),
    [
        ({"dataset": None}, "'dataset' is missing"),
        ({"dataset": {"path_or_dataset": "x"}}, r"dataset\._target_' is missing"),
        ({"dataset__maxlength": 3}, r"dataset\.maxlength' is no known key"),
        ({"dataset__path_or_dataset": "nowhere.json"}, "meta file 'nowhere.json' cannot be read"),
        ({"dataset__dataset_names": ["shape"]}, "write 'shapes'"),
        ({"dataset": {"_target_": "make_cord_v3_dataset"}}, "write 'make_cord_v2_dataset'"),
        ({"dataset": {"_target_": "nemotron_vlm", "path_or_dataset": "x"}}, "subsets' is missing"),
        ({"packed_sequence": {"pack_sise": 3}}, "write 'packed_sequence.pack_size'"),
        ({"packed_sequence": {"pack_size": 3, "packing_format": "thd2"}}, "packing_format"),
        ({"packed_sequences": {"pack_size": 3}}, "write 'packed_sequence'"),
        ({"bake": {}}, r"bake\.output' is missing"),
        ({"bake__on_bad_rows": "drop"}, r"write 'bake\.on_bad_row'"),
        ({"bake__packing": "neat"}, "no pack size is given"),
        ({"bake__order": "length_grouped", "packed_sequence": {"pack_size": 9}}, "packs are equally long already"),
        ({"model": None}, "No processor is named"),
        ({"processor": {"_target_": "my.Factory"}}, "which is no from_pretrained"),
        ({"step_scheduler": {"local_batch_size": 0}}, r"step_scheduler\.local_batch_size' is 0"),
        ({"dataloader": {"shufle": True}}, r"write 'dataloader\.shuffle'"),
    ],
)
def test_a_mistake_is_told_with_its_key_and_a_remedy(load: Load, sections: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        load(**sections)


@pytest.mark.parametrize(
    "sections",
    [
        {"dataset__max_length": 90, "packed_sequence": {"pack_size": 400, "balance_media_tokens": False}},
        {"dataset": {"_target_": "make_cord_v2_dataset", "limit_dataset_samples": 7}, "bake__order": "shuffled"},
        {"dataset": {"_target_": "build_mock_vlm_dataset", "max_length": 50}},
        {"dataset": {"_target_": "nemotron_vlm", "path_or_dataset": "a/b", "subsets": ["x"]}},
        {"processor": {"pretrained_model_name_or_path": "hub/processor", "min_pixels": 784}},
        {"bake__stream": "improved", "packed_sequence": {"pack_size": 400}, "dataset__max_length": 90},
    ],
)
def test_the_resolved_recipe_reads_as_itself(load: Load, tmp_path: Path, sections: dict[str, Any]) -> None:
    config = load(**sections)
    (tmp_path / "resolved.yaml").write_text(resolved_yaml(config))
    assert load_config(str(tmp_path / "resolved.yaml")) == config


def test_a_bagel_recipe_stays_one() -> None:
    assert isinstance(load_config("configs/bagel.yaml"), Config)
