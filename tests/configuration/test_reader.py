"""Reading a recipe: what AutoModel's spelling means, and what parbake's own section adds."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest
import yaml

from pipeline.config import CORRECTIONS, Config
from pipeline.configuration.reader import Flags, load_config, resolved_yaml
from pipeline.errors import ConfigError

RECIPE: dict[str, Any] = yaml.safe_load(
    """
    recipe: FinetuneRecipeForMultimodal
    model: {_target_: os.system, pretrained_model_name_or_path: ByteDance-Seed/BAGEL-7B-MoT}
    optimizer: {_target_: torch.optim.AdamW, lr: 2.0e-5}
    dataset:
      dataset_info:
        t2i_pretrain: {t2i: {data_dir: /data/t2i, num_files: 8, num_total_samples: 1000}}
        unified_edit: {edits: {data_dir: /data/edits, parquet_info_path: /data/info.json}}
        vlm_sft: {answers: {data_dir: /data/images, jsonl_path: /data/train.jsonl}}
      grouped_datasets:
        t2i_pretrain:
          dataset_names: [t2i]
          image_transform_args: {image_stride: 16, max_image_size: 1024, min_image_size: 512}
          is_mandatory: true
          num_used_data: [8]
          weight: 1
        unified_edit:
          dataset_names: [edits]
          image_transform_args: {image_stride: 16, max_image_size: 1024, min_image_size: 512}
          vit_image_transform_args: {image_stride: 14, max_image_size: 518, min_image_size: 224}
          num_used_data: [8]
        vlm_sft:
          dataset_names: [answers]
          image_transform_args: {image_stride: 14, max_image_size: 980, min_image_size: 378, max_pixels: 2_007_040}
          frame_sampler_args: {max_num_frames: 12, min_num_frames: 8}
          shuffle_lines: true
          num_used_data: [1000]
          weight: 0.5
      use_flex: true
    dataloader: {num_workers: 2, pin_memory: true, prefetch_factor: 2}
    bake: {output: /out, length: {packs_per_lane: 10}}
    """
)

Reader = Callable[..., Config]


@pytest.fixture
def read(tmp_path: Path) -> Reader:
    """Write RECIPE, changed by a function or given as text, and read it back."""

    def reading(
        change: Callable[[dict[str, Any]], object] | None = None,
        *overrides: str,
        text: str | None = None,
        flags: Flags | None = None,
    ) -> Config:
        recipe = copy.deepcopy(RECIPE)
        if change is not None:
            change(recipe)
        path = tmp_path / "recipe.yaml"
        path.write_text(text if text is not None else yaml.safe_dump(recipe, sort_keys=False))
        return load_config(str(path), overrides, flags)

    return reading


# ---- the recipe as AutoModel spells it


def test_an_automodel_recipe_with_a_bake_section_is_a_configuration(read: Reader) -> None:
    config = read()

    assert config.seed == 4396
    assert config.tokenizer_path == "ByteDance-Seed/BAGEL-7B-MoT"
    assert config.num_workers == 2
    assert config.ignored_sections == ("recipe", "optimizer")
    assert [(group.name, group.kind, group.weight, group.is_mandatory) for group in config.dataset.groups] == [
        ("t2i_pretrain", "t2i_pretrain", 1.0, True),
        ("unified_edit", "unified_edit", 0.0, False),
        ("vlm_sft", "vlm_sft", 0.5, False),
    ]
    conversations = config.dataset.groups[2]
    assert conversations.sources[0].name == "vlm_sft/answers"
    assert conversations.sources[0].jsonl_path == "/data/train.jsonl"
    assert conversations.sources[0].num_used_data == 1000
    assert conversations.image_transform.max_pixels == 2_007_040
    assert (conversations.shuffle_lines, conversations.shuffle_seed) == (True, 0)


def test_the_order_of_groups_is_the_order_of_the_file(read: Reader) -> None:
    def swap(recipe: dict[str, Any]) -> None:
        groups = recipe["dataset"]["grouped_datasets"]
        groups["t2i_pretrain"] = groups.pop("t2i_pretrain")

    assert [group.name for group in read(swap).dataset.groups] == ["unified_edit", "vlm_sft", "t2i_pretrain"]


def test_the_packaged_bagel_configuration_can_be_read() -> None:
    config = load_config("configs/bagel.yaml")

    assert config.bake.shard_bytes == 1 << 30
    assert len(config.dataset.groups) == 3


@pytest.mark.parametrize(
    ("sections", "path"),
    [
        ({"tokenizer": "a"}, "a"),
        ({"tokenizer": {"pretrained_model_name_or_path": "a"}, "model": {"pretrained_model_name_or_path": "b"}}, "a"),
        ({"model": {"pretrained_model_name_or_path": "b", "config": "c"}}, "b"),
        ({"model": {"config": {"pretrained_model_name_or_path": "c"}}}, "c"),
        ({"model": {"config": "c"}}, "c"),
        ({"tokenizer": {"pretrained_model_name_or_path": " "}, "model": {"config": "c"}}, "c"),
    ],
)
def test_the_tokenizer_is_found_where_automodel_finds_it(read: Reader, sections: dict[str, Any], path: str) -> None:
    def change(recipe: dict[str, Any]) -> None:
        recipe.pop("model")
        recipe.update(sections)

    assert read(change).tokenizer_path == path


def test_several_groups_may_be_of_one_kind(read: Reader) -> None:
    def add(recipe: dict[str, Any]) -> None:
        dataset = recipe["dataset"]
        dataset["grouped_datasets"]["posters"] = {**dataset["grouped_datasets"]["t2i_pretrain"], "kind": "t2i_pretrain"}
        dataset["dataset_info"]["posters"] = {"t2i": {"data_dir": "s3://bucket/posters"}}

    posters = read(add).dataset.groups[-1]

    assert (posters.name, posters.kind) == ("posters", "t2i_pretrain")
    assert posters.sources[0].name == "posters/t2i"
    assert posters.sources[0].data_dir == "s3://bucket/posters"


def test_a_group_without_its_own_entry_in_dataset_info_uses_its_kinds(read: Reader) -> None:
    def rename(recipe: dict[str, Any]) -> None:
        groups = recipe["dataset"]["grouped_datasets"]
        groups["posters"] = {**groups.pop("t2i_pretrain"), "kind": "t2i_pretrain"}

    assert read(rename).dataset.groups[-1].sources[0].data_dir == "/data/t2i"


@pytest.mark.parametrize("suffix", ["yaml", "yml", "json"])
def test_tables_may_lie_in_files_of_their_own_and_then_win_over_inline_ones(
    read: Reader, tmp_path: Path, suffix: str
) -> None:
    def move(recipe: dict[str, Any]) -> None:
        dataset = recipe["dataset"]
        write = json.dumps if suffix == "json" else yaml.safe_dump
        for table in ("grouped_datasets", "dataset_info"):
            (tmp_path / f"{table}.{suffix}").write_text(write(dataset[table]))
            dataset[table] = {"t2i_pretrain": {"nothing": "of this is read"}}
            dataset[f"{table}_path"] = f"{table}.{suffix}"

    assert sorted(group.name for group in read(move).dataset.groups) == ["t2i_pretrain", "unified_edit", "vlm_sft"]


def test_an_inline_parquet_info_counts_row_groups(read: Reader) -> None:
    def add(recipe: dict[str, Any]) -> None:
        group = recipe["dataset"]["grouped_datasets"]["unified_edit"]
        group["parquet_info"] = {"/data/edits/a.parquet": {"num_row_groups": 3, "num_rows": 9}}

    assert read(add).dataset.groups[1].parquet_info == {"/data/edits/a.parquet": 3}


def test_words_and_exponents_that_yaml_leaves_strings_are_read_as_automodel_reads_them(read: Reader) -> None:
    def change(recipe: dict[str, Any]) -> None:
        recipe["dataset"].update(vit_cond_dropout_prob="3e-1", interpolate_pos="True", grouped_datasets_path="none")
        recipe["bake"]["length"] = {"tokens": "2.0e9"}

    config = read(change)

    assert config.dataset.vit_cond_dropout_prob == 0.3
    assert config.dataset.interpolate_pos is True
    assert config.bake.length.tokens == 2_000_000_000


def test_environment_variables_are_filled_in(read: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BAGEL_DATA", "/somewhere")
    monkeypatch.delenv("BAGEL_OTHER", raising=False)

    def change(recipe: dict[str, Any]) -> None:
        recipe["dataset"]["dataset_info"]["t2i_pretrain"]["t2i"]["data_dir"] = "$BAGEL_DATA/t2i"
        recipe["tokenizer"] = "${oc.env:BAGEL_DATA}/tokenizer"
        recipe["bake"]["output"] = "${BAGEL_OTHER,/out}/bake"

    config = read(change)

    assert config.dataset.groups[0].sources[0].data_dir == "/somewhere/t2i"
    assert config.tokenizer_path == "/somewhere/tokenizer"
    assert config.bake.output == "/out/bake"


def test_nothing_is_imported_or_run_for_a_target(read: Reader) -> None:
    assert "_target_" not in resolved_yaml(read())


def test_the_file_may_lie_on_any_storage() -> None:
    with fsspec.open("memory://configs/recipe.yaml", "w") as file:
        yaml.safe_dump(RECIPE, file)

    assert load_config("memory://configs/recipe.yaml").bake.output == "/out"


# ---- paths


def test_a_relative_path_is_looked_up_in_the_working_directory_then_beside_the_file(
    read: Reader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    for folder in (elsewhere / "here", tmp_path / "here", tmp_path / "beside", tmp_path / "tokens"):
        folder.mkdir(parents=True)
    monkeypatch.chdir(elsewhere)

    def change(recipe: dict[str, Any]) -> None:
        infos = recipe["dataset"]["dataset_info"]
        infos["t2i_pretrain"]["t2i"]["data_dir"] = "here"
        infos["unified_edit"]["edits"]["data_dir"] = "beside"
        infos["vlm_sft"]["answers"]["data_dir"] = "nowhere"
        recipe["tokenizer"] = "tokens"
        recipe["bake"]["output"] = "beside"

    config = read(change)

    assert [group.sources[0].data_dir for group in config.dataset.groups] == [
        "here",
        str(tmp_path / "beside"),
        "nowhere",
    ]
    assert config.tokenizer_path == str(tmp_path / "tokens")
    assert config.bake.output == "beside"


# ---- the bake section


def test_the_reference_stream_is_the_default_and_changes_nothing(read: Reader) -> None:
    bake = read().bake

    assert (bake.stream, bake.packer, bake.corrections, bake.drop_tail) == ("reference", "greedy", (), True)
    assert (bake.check_images, bake.balance, bake.pixels, bake.executor) == ("decode", "off", "raw", "ray")


def test_the_improved_stream_sets_its_switches_at_once(read: Reader) -> None:
    bake = read(None, "bake.stream=improved").bake

    assert (bake.packer, bake.corrections, bake.drop_tail) == ("best_fit", CORRECTIONS, False)
    assert (bake.check_images, bake.balance) == ("header", "window")


def test_each_switch_of_a_stream_can_be_set_alone(read: Reader) -> None:
    bake = read(None, "bake.stream=improved", "bake.packer=greedy", "bake.corrections=none", "bake.drop_tail=true").bake

    assert (bake.packer, bake.corrections, bake.drop_tail) == ("greedy", (), True)
    assert (bake.check_images, bake.balance) == ("header", "off")


def test_balance_off_is_understood_although_yaml_reads_it_as_false(read: Reader) -> None:
    assert read(None, "bake.stream=improved", "bake.balance=off").bake.balance == "off"


@pytest.mark.parametrize(
    ("written", "num_bytes"),
    [("1GiB", 1 << 30), ("512MB", 512_000_000), ("1.5 KiB", 1536), ("1000", 1000), ("2_000B", 2000), ("1 gb", 10**9)],
)
def test_a_shard_size_may_have_a_unit(read: Reader, written: str, num_bytes: int) -> None:
    assert read(lambda recipe: recipe["bake"].update(shard_bytes=written)).bake.shard_bytes == num_bytes


@pytest.mark.parametrize(
    ("written", "corrections"),
    [("all", CORRECTIONS), ("none", ()), (None, ()), ("[alpha, exif, alpha]", ("exif", "alpha")), ("exif", ("exif",))],
)
def test_corrections_are_named_in_their_own_order(
    read: Reader, written: str | None, corrections: tuple[str, ...]
) -> None:
    assert read(None, f"bake.corrections={written or 'null'}").bake.corrections == corrections


# ---- the command line


def test_set_overrides_any_value_and_the_last_one_wins(read: Reader) -> None:
    config = read(
        None,
        "dataset.max_num_tokens=40000",
        "dataset.max_num_tokens=50000",
        "dataset.grouped_datasets.vlm_sft.num_used_data.0=7",
        "dataset.grouped_datasets.vlm_sft.frame_sampler_args={max_num_frames: 4, min_num_frames: 2}",
        "seed=1",
    )

    assert config.dataset.max_num_tokens == 50_000
    assert config.dataset.groups[2].sources[0].num_used_data == 7
    assert config.dataset.groups[2].frame_sampler is not None
    assert config.dataset.groups[2].frame_sampler.max_num_frames == 4
    assert config.seed == 1


def test_set_reaches_into_a_table_that_has_its_own_file(read: Reader, tmp_path: Path) -> None:
    def move(recipe: dict[str, Any]) -> None:
        (tmp_path / "groups.yaml").write_text(yaml.safe_dump(recipe["dataset"].pop("grouped_datasets")))

    config = read(
        move,
        "dataset.grouped_datasets.vlm_sft.weight=3",
        "dataset.grouped_datasets_path=" + str(tmp_path / "groups.yaml"),
    )

    assert {group.name: group.weight for group in config.dataset.groups}["vlm_sft"] == 3.0


def test_an_alias_is_a_copy_for_an_override(read: Reader) -> None:
    def share(recipe: dict[str, Any]) -> None:
        groups = recipe["dataset"]["grouped_datasets"]
        groups["unified_edit"]["image_transform_args"] = groups["t2i_pretrain"][
            "image_transform_args"
        ]  # dumped as *id001

    config = read(share, "dataset.grouped_datasets.t2i_pretrain.image_transform_args.max_image_size=64")

    assert [group.image_transform.max_image_size for group in config.dataset.groups] == [64, 1024, 980]


def test_flags_win_over_set_and_file(read: Reader) -> None:
    flags = Flags(output="/elsewhere", world_size=4, packs_per_lane=3, executor="inline")

    bake = read(None, "bake.world_size=2", "bake.length.epochs=1", flags=flags).bake

    assert (bake.output, bake.world_size, bake.length.packs_per_lane, bake.length.epochs, bake.executor) == (
        "/elsewhere",
        4,
        3,
        None,
        "inline",
    )


def test_a_length_on_the_command_line_replaces_the_files_whatever_it_counts(read: Reader) -> None:
    length = read(None, "bake.length.tokens=1e6").bake.length

    assert (length.packs_per_lane, length.tokens, length.epochs) == (None, 1_000_000, None)


def test_a_whole_bake_section_may_come_from_the_command_line(read: Reader) -> None:
    def drop(recipe: dict[str, Any]) -> None:
        del recipe["bake"]

    assert read(drop, flags=Flags(output="/x", packs_per_lane=1)).bake.output == "/x"


# ---- the resolved configuration


def test_the_resolved_yaml_reads_back_as_the_same_configuration(read: Reader, tmp_path: Path) -> None:
    config = read(None, "bake.stream=improved", "bake.max_images=9")
    (tmp_path / "resolved.yaml").write_text(resolved_yaml(config))

    again = load_config(str(tmp_path / "resolved.yaml"))

    assert again == config.model_copy(update={"ignored_sections": ()})


def test_the_resolved_yaml_holds_no_secret(read: Reader, tmp_path: Path) -> None:
    def add(recipe: dict[str, Any]) -> None:
        recipe["bake"]["storage_options"] = {"key": "hidden", "secret": "hidden", "client": {"x": "hidden"}}
        recipe["bake"]["output"] = "s3://user:hidden@bucket/out"
        recipe["dataset"]["dataset_info"]["t2i_pretrain"]["t2i"]["data_dir"] = "https://host/t2i?sig=hidden"

    text = resolved_yaml(read(add))

    assert "hidden" not in text
    assert "s3://bucket/out" in text
    (tmp_path / "resolved.yaml").write_text(text)
    assert load_config(str(tmp_path / "resolved.yaml")).bake.storage_options == {}


def test_a_configuration_never_shows_its_storage_options_in_an_error(read: Reader) -> None:
    with pytest.raises(ConfigError) as caught:
        read(lambda recipe: recipe["bake"].update(storage_options=["hidden"]))

    assert "hidden" not in str(caught.value)
