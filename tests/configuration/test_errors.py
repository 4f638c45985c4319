"""Every way of getting a configuration wrong ends in one sentence: the key, the value, the file, what to write."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.configuration.errors import nearest
from pipeline.configuration.reader import load_config
from pipeline.errors import ConfigError

RECIPE: dict[str, Any] = yaml.safe_load(
    """
    tokenizer: /tokenizer
    dataset:
      dataset_info:
        t2i_pretrain: {t2i: {data_dir: /data/t2i}}
        unified_edit: {edits: {data_dir: /data/edits}}
        vlm_sft: {answers: {data_dir: /data/images, jsonl_path: /data/train.jsonl}}
      grouped_datasets:
        t2i_pretrain:
          dataset_names: [t2i]
          image_transform_args: {image_stride: 16, max_image_size: 1024, min_image_size: 512}
          num_used_data: [8]
          weight: 1
        unified_edit:
          dataset_names: [edits]
          image_transform_args: {image_stride: 16, max_image_size: 1024, min_image_size: 512}
          vit_image_transform_args: {image_stride: 14, max_image_size: 518, min_image_size: 224}
          num_used_data: [8]
        vlm_sft:
          dataset_names: [answers]
          image_transform_args: {image_stride: 14, max_image_size: 980, min_image_size: 378}
          frame_sampler_args: {max_num_frames: 12, min_num_frames: 8}
          num_used_data: [1000]
    bake: {output: /out, length: {packs_per_lane: 10}}
    """
)

T2I = "dataset.grouped_datasets.t2i_pretrain"
VLM = "dataset.grouped_datasets.vlm_sft"
INFO = "dataset.dataset_info"


def error_of(tmp_path: Path, text: str, *overrides: str) -> str:
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(str(path), overrides)
    assert caught.value.exit_code == 2
    message = str(caught.value)
    assert "\n" not in message
    assert "pydantic" not in message
    return message


def changed(change: Callable[[dict[str, Any]], object]) -> str:
    recipe = copy.deepcopy(RECIPE)
    change(recipe)
    return yaml.safe_dump(recipe, sort_keys=False)


def with_value(dotted: str, value: object) -> str:
    """RECIPE as text, one value of it replaced, added, or (value `...`) removed."""
    recipe = copy.deepcopy(RECIPE)
    *parents, last = dotted.split(".")
    holder: Any = recipe
    for part in parents:
        holder = holder.setdefault(part, {})
    if value is ...:
        del holder[last]
    else:
        holder[last] = value
    return yaml.safe_dump(recipe, sort_keys=False)


@pytest.mark.parametrize(
    ("dotted", "near"),
    [
        ("dataset.max_num_token", "dataset.max_num_tokens"),
        ("dataset.groups_path", "dataset.grouped_datasets_path"),
        (f"{T2I}.wieght", f"{T2I}.weight"),
        (f"{T2I}.image_transform_args.image_strid", f"{T2I}.image_transform_args.image_stride"),
        (f"{VLM}.frame_sampler_args.max_frames", f"{VLM}.frame_sampler_args.max_num_frames"),
        (f"{INFO}.t2i_pretrain.t2i.datadir", f"{INFO}.t2i_pretrain.t2i.data_dir"),
        ("dataloader.num_worker", "dataloader.num_workers"),
        ("bake.outputs", "bake.output"),
        ("bake.length.pack_per_lane", "bake.length.packs_per_lane"),
    ],
)
def test_an_unknown_key_is_named_with_its_value_its_file_and_the_nearest_key(
    tmp_path: Path, dotted: str, near: str
) -> None:
    message = error_of(tmp_path, with_value(dotted, 314))

    assert f"'{dotted}' is no known key (value 314" in message
    assert f"{tmp_path}/recipe.yaml, line " in message
    assert f"write '{near}'" in message


def test_an_error_names_the_line_of_its_key(tmp_path: Path) -> None:
    text = "# a comment\n" + with_value("dataset.max_num_tokens", "many")
    line = 1 + next(number for number, line in enumerate(text.splitlines()) if "max_num_tokens" in line)

    assert f"recipe.yaml, line {line})" in error_of(tmp_path, text)


def test_an_unknown_key_without_a_near_one_gets_the_list(tmp_path: Path) -> None:
    assert "choose from packs_per_lane, tokens, epochs" in error_of(tmp_path, with_value("bake.length.zzz", 1))


@pytest.mark.parametrize(
    ("section", "near"),
    [("datset", "dataset"), ("bakes", "bake"), ("Dataloader", "dataloader"), ("tokeniser", "tokenizer")],
)
def test_a_top_level_near_miss_is_an_error_and_not_an_ignored_section(tmp_path: Path, section: str, near: str) -> None:
    def rename(recipe: dict[str, Any]) -> None:
        recipe[section] = recipe.pop(near, {"num_workers": 1})

    message = error_of(tmp_path, changed(rename))

    assert f"'{section}' is no known key" in message
    assert f"write '{near}'" in message


@pytest.mark.parametrize(
    ("dotted", "value", "expected"),
    [
        ("dataset.max_buffer_size", "many", "but must be a whole number"),
        ("dataset.max_buffer_size", 1.5, "but must be a whole number"),
        ("dataset.max_buffer_size", True, "but must be a whole number"),
        ("dataset.max_buffer_size", None, "but must be a whole number"),
        ("dataset.use_flex", 1, "but must be true or false"),
        ("dataset.text_cond_dropout_prob", [0.1], "but must be a number"),
        (f"{T2I}.dataset_names", "t2i", "but must be a list"),
        (f"{T2I}.num_used_data", ["x"], "but must be a whole number"),
        (f"{T2I}.image_transform_args", 16, "but must be a mapping"),
        (f"{T2I}.image_transform_args.image_mean", [0.5, 0.5], "but must be a list of three numbers"),
        (f"{T2I}.image_transform_args.image_mean", [0.5, 0.5, 0.5, 0.5], "but must be a list of three numbers"),
        (f"{T2I}.weight", float("nan"), "but must be finite"),
        (f"{T2I}.weight", -1, "but must be at least 0"),
        (T2I, ["t2i"], "but must be a mapping"),
        ("dataset.grouped_datasets", ["t2i"], "but must be a mapping"),
        (f"{INFO}.t2i_pretrain.t2i", "/data", "but must be a mapping"),
        (f"{INFO}.t2i_pretrain.t2i.data_dir", 5, "but must be a string"),
        ("dataset", None, "but must be a mapping"),
        ("dataset.dataset_info_path", 5, "but must be a path"),
        ("dataloader", 4, "but must be a mapping"),
        ("bake", "out", "but must be a mapping"),
        ("seed", "x", "but must be a whole number"),
        ("tokenizer", {"pretrained_model_name_or_path": 5}, "but must be a string"),
        ("bake.stream", "improve", "write 'improved'"),
        ("bake.pixels", "png", "choose from raw, webp"),
        ("bake.world_size", 0, "but must be more than 0"),
        ("bake.max_dropped_fraction", 2, "but must be at most 1.0"),
        ("bake.shard_bytes", "huge", "which is no size"),
        ("bake.corrections", ["exif", "alfa"], "write 'alpha'"),
        ("bake.corrections", {"exif": True}, "but must be a list of names"),
    ],
)
def test_a_value_of_the_wrong_kind_is_named_with_what_it_must_be(
    tmp_path: Path, dotted: str, value: object, expected: str
) -> None:
    message = error_of(tmp_path, with_value(dotted, value))

    assert f"'{dotted}" in message
    assert "recipe.yaml" in message
    assert expected in message


def test_a_wrong_value_with_a_default_says_what_removing_it_gives(tmp_path: Path) -> None:
    assert "or remove the key to have 50" in error_of(tmp_path, with_value("dataset.max_buffer_size", "many"))


@pytest.mark.parametrize(
    ("dotted", "expected"),
    [
        ("dataset", "'dataset' is missing"),
        ("dataset.grouped_datasets", "'dataset.grouped_datasets' is missing"),
        ("dataset.dataset_info", "give 'dataset.dataset_info_path'"),
        ("tokenizer", "No tokenizer is named"),
        ("bake", "'bake.output' is missing"),
        ("bake.output", "give --output"),
        ("bake.length", "write 'bake: {length: {packs_per_lane: 1000}}', or {tokens: 2.0e9}, or {epochs: 1}"),
        (f"{T2I}.dataset_names", f"'{T2I}.dataset_names' is missing"),
        (f"{T2I}.num_used_data", f"'{T2I}.num_used_data' is missing"),
        (f"{T2I}.image_transform_args", f"'{T2I}.image_transform_args' is missing"),
        (f"{T2I}.image_transform_args.image_stride", f"'{T2I}.image_transform_args.image_stride' is missing"),
        ("dataset.grouped_datasets.unified_edit.vit_image_transform_args", "a group of kind unified_edit"),
        (f"{VLM}.frame_sampler_args", "a group of kind vlm_sft"),
        (f"{INFO}.t2i_pretrain", f"'{INFO}.t2i_pretrain' is missing"),
        (f"{INFO}.t2i_pretrain.t2i", f"'{INFO}.t2i_pretrain.t2i' is missing"),
        (f"{INFO}.t2i_pretrain.t2i.data_dir", f"'{INFO}.t2i_pretrain.t2i.data_dir' is missing"),
        (f"{INFO}.vlm_sft.answers.jsonl_path", "write the path of the JSONL"),
    ],
)
def test_what_is_missing_is_named_with_what_to_add(tmp_path: Path, dotted: str, expected: str) -> None:
    assert expected in error_of(tmp_path, with_value(dotted, ...))


@pytest.mark.parametrize(
    ("dotted", "value", "expected"),
    [
        ("dataset.expected_num_tokens", 40_000, "but must be at most 'dataset.max_num_tokens' (36864)"),
        ("dataset.max_num_tokens_per_sample", 40_000, "but must be at most 'dataset.max_num_tokens' (36864)"),
        ("dataset.expected_num_tokens", 0, "but must be at least 1"),
        ("dataset.max_buffer_size", -1, "but must be at least 0"),
        ("dataset.vit_patch_size", 0, "but must be at least 1"),
        ("dataset.vae_cond_dropout_prob", 1.5, "but must lie between 0 and 1"),
        ("dataloader.num_workers", -1, "but must be at least 0"),
        (f"{T2I}.weight", 0, "No group of 'dataset.grouped_datasets' has a weight"),
        ("dataset.grouped_datasets", {}, "there is nothing to pack"),
        (f"{T2I}.num_used_data", [1, 2], "one entry for each of the 1 'dataset_names'"),
        (f"{T2I}.num_used_data", [-1], "but must be at least 0"),
        (f"{T2I}.dataset_names", [], "one entry for each of the 0 'dataset_names'"),
        (f"{T2I}.image_transform_args.image_stride", 14, "multiple of 'dataset.vae_image_downsample' (16)"),
        (f"{VLM}.image_transform_args.image_stride", 16, "multiple of 'dataset.vit_patch_size' (14)"),
        (f"{VLM}.image_transform_args.image_std", [1, 0, 1], "but must not hold 0"),
        (f"{VLM}.frame_sampler_args.max_num_frames", 4, "but must be at least 'min_num_frames' (8)"),
        (f"{T2I}.kind", "t2i_pretrian", "write 't2i_pretrain'"),
        (f"{T2I}.shuffle_lines", False, "but the group is of kind t2i_pretrain"),
        (f"{VLM}.vit_image_transform_args", RECIPE["dataset"]["grouped_datasets"]["vlm_sft"]["image_transform_args"],
         "only unified_edit takes it"),
        ("bake.length", {}, "exactly one of packs_per_lane, tokens and epochs"),
        ("bake.length", {"tokens": 1e9, "epochs": 1}, "exactly one of packs_per_lane, tokens and epochs"),
        ("bake.length", {"packs_per_lane": 0}, "but must be more than 0"),
        ("bake.max_images", 3, "but 'bake.packer' is 'greedy'"),
        ("bake.balance", "window", "but 'bake.packer' is 'greedy'"),
        ("dataset._target_", "os.system", "takes no '_target_'"),
        ("dataloader._target_", "os.system", "takes no '_target_'"),
    ],
)  # fmt: skip
def test_what_could_not_work_is_refused_with_the_reason(
    tmp_path: Path, dotted: str, value: object, expected: str
) -> None:
    message = error_of(tmp_path, with_value(dotted, value))

    assert expected in message
    assert "recipe.yaml" in message


def test_a_group_with_a_name_of_its_own_needs_a_kind(tmp_path: Path) -> None:
    def rename(recipe: dict[str, Any]) -> None:
        groups = recipe["dataset"]["grouped_datasets"]
        groups["posters"] = groups.pop("t2i_pretrain")

    assert "add 'kind: t2i_pretrain'" in error_of(tmp_path, changed(rename))


def test_a_misspelled_data_set_name_suggests_the_one_that_is_there(tmp_path: Path) -> None:
    assert "write 't2i'" in error_of(tmp_path, with_value(f"{T2I}.dataset_names", ["t2j"]))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("dataset: [1, 2\nbake: {}\n", "The YAML cannot be read"),
        ("dataset: {a: 1}\n\tbake: {}\n", "line 2"),
        ("a: !!python/object/apply:os.system ['touch /tmp/owned']\n", "The YAML cannot be read"),
        ("dataset: {}\nbake: {}\ndataset: {}\n", "The key 'dataset' is written twice"),
        ("dataset:\n  use_flex: true\n  use_flex: false\n", "line 3"),
        ("dataset: &loop\n  inner: *loop\n", "alias contains itself"),
        ("", "holds no sections"),
        ("- a\n- b\n", "holds no sections"),
        ("just a sentence", "holds no sections"),
        ("1: 2\n", "is no string"),
        ("[" * 5000, "nests too deeply"),
        ("a: 1\n---\nb: 2\n", "The YAML cannot be read"),
        ("\x00", "The YAML cannot be read"),
    ],
)
def test_a_bad_yaml_file_is_named_with_its_line(tmp_path: Path, text: str, expected: str) -> None:
    message = error_of(tmp_path, text)

    assert expected in message
    assert "recipe.yaml" in message


def test_a_yaml_bomb_is_refused_without_being_blown_up(tmp_path: Path) -> None:
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    levels += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]

    assert "aliases repeat too often" in error_of(tmp_path, "\n".join(levels))


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_bytes(b"\xff\xfe\x00")

    with pytest.raises(ConfigError, match="is not UTF-8"):
        load_config(str(tmp_path / "recipe.yaml"))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"configuration .*/nowhere.yaml is missing"):
        load_config(str(tmp_path / "nowhere.yaml"))


def test_a_folder_is_no_configuration(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(str(tmp_path))


def test_an_error_in_a_tables_own_file_names_that_file(tmp_path: Path) -> None:
    groups = copy.deepcopy(RECIPE["dataset"]["grouped_datasets"])
    groups["t2i_pretrain"]["wieght"] = 2
    (tmp_path / "groups.yaml").write_text(yaml.safe_dump(groups))

    message = error_of(tmp_path, with_value("dataset.grouped_datasets_path", str(tmp_path / "groups.yaml")))

    assert f"{tmp_path}/groups.yaml, line " in message
    assert f"write '{T2I}.weight'" in message


def test_a_missing_or_broken_file_of_a_table_is_named(tmp_path: Path) -> None:
    assert "is missing" in error_of(tmp_path, with_value("dataset.dataset_info_path", "nowhere.json"))
    (tmp_path / "info.json").write_text('{"a": 1,\n "a": 2}')
    assert "written twice" in error_of(tmp_path, with_value("dataset.dataset_info_path", str(tmp_path / "info.json")))
    (tmp_path / "info.json").write_text('{"a": 1,\n oops}')
    assert "line 2" in error_of(tmp_path, with_value("dataset.dataset_info_path", str(tmp_path / "info.json")))


def test_an_environment_variable_that_is_not_set_is_named_with_its_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PARBAKE_NO_SUCH", raising=False)

    message = error_of(tmp_path, with_value("bake.output", "${PARBAKE_NO_SUCH}/x"))

    assert "'bake.output'" in message
    assert "'PARBAKE_NO_SUCH' is not set" in message


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("dataset.max_num_token=1", "'dataset.max_num_token' is no known key (value 1; --set)"),
        ("dataset.max_buffer_size=many", "'dataset.max_buffer_size' is 'many' (--set)"),
        ("optimizer.lr=1", "names no section that parbake reads"),
        ("bakee.output=x", "write 'bake'"),
        ("bake=[", "The YAML cannot be read (--set bake, line 1)"),
        ("bake.output", "write --set dotted.key=value"),
        ("=1", "write --set dotted.key=value"),
        (f"{T2I}.num_used_data.3=1", "asks for entry '3' of a list of 1"),
        ("dataset.max_num_tokens.x=1", "but must be a whole number"),
        ("bake.output.x=1", "looks for a key inside 'bake.output'"),
    ],
)
def test_an_override_is_checked_like_the_file_and_named_as_what_it_is(
    tmp_path: Path, override: str, expected: str
) -> None:
    assert expected in error_of(tmp_path, yaml.safe_dump(RECIPE), override)


@pytest.mark.parametrize(
    ("word", "match"), [("max_num_token", "max_num_tokens"), ("MAX_NUM_TOKENS", "max_num_tokens"), ("zzz", "")]
)
def test_the_nearest_word_is_found_whatever_its_case(word: str, match: str) -> None:
    assert nearest(word, ["expected_num_tokens", "max_num_tokens"]) == match
