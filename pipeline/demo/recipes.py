"""The demo's note and its three recipes, in NeMo AutoModel's spelling."""

from __future__ import annotations

__all__ = ["BAGEL", "NEMOTRON", "NOTE", "VLM"]

NOTE = """\
# The parbake demo

Drawn scenes and texts that are true of them, one source of every kind:

- `t2i/*.parquet`: pictures with several captions each ("a red circle left of a blue square")
- `edits/*.parquet`: chains of pictures and the instructions that lead from one to the next
- `answers/answers.jsonl` with `answers/media/`: questions and answers about one picture, two pictures, a clip (a folder
  of frames) or none. One row names a picture that is not there: parbake drops it, counts it and says which it was.
- `chats/meta.json`: the same questions as a meta data set for a VLM: `scenes.jsonl` and `clips.json` (clips are lists
  of frames, of which half are taken)
- `nemotron/<subset>/`: the same questions once more as Nemotron-VLM-Dataset-v2 has them: rows beside tars of pictures
- `tokenizer/`: a small byte-level BPE tokenizer with Qwen2's chat tokens, trained on these texts
- `model/`: a small Qwen2.5-VL without weights: processor, chat template, configuration
- `config.yaml`, `vlm.yaml`, `nemotron.yaml`: recipes in NeMo AutoModel's spelling, and what parbake adds to them under
  `bake:`

From this folder:

    parbake run config.yaml          index, plan and render into bake/
    parbake validate bake            check the laws and write bake/report/
    parbake inspect bake --position 1 --html pack.html

    parbake run vlm.yaml             the same for a VLM, into vlm-bake/
    parbake run nemotron.yaml        and from tars, into nemotron-bake/
"""

BAGEL = """\
# A BAGEL recipe as NeMo AutoModel spells it, with budgets so small that it bakes in seconds.
seed: 4396

tokenizer:
  pretrained_model_name_or_path: tokenizer

dataset:
  grouped_datasets:
    t2i_pretrain:
      dataset_names: [scenes]
      image_transform_args: {image_stride: 16, max_image_size: 256, min_image_size: 96}
      is_mandatory: true
      num_used_data: [4]
      weight: 1.0
    unified_edit:
      dataset_names: [chains]
      image_transform_args: {image_stride: 16, max_image_size: 256, min_image_size: 96}
      vit_image_transform_args: {image_stride: 14, max_image_size: 224, min_image_size: 84}
      is_mandatory: false
      num_used_data: [2]
      weight: 1.0
    vlm_sft:
      dataset_names: [answers]
      image_transform_args: {image_stride: 14, max_image_size: 224, min_image_size: 84, max_pixels: 301056}
      frame_sampler_args: {max_num_frames: 6, min_num_frames: 3}
      is_mandatory: false
      shuffle_lines: true
      shuffle_seed: 0
      num_used_data: [97]
      weight: 1.0
  dataset_info:
    t2i_pretrain:
      scenes: {data_dir: t2i}
    unified_edit:
      chains: {data_dir: edits}
    vlm_sft:
      answers: {data_dir: answers/media, jsonl_path: answers/answers.jsonl}
  expected_num_tokens: 2048
  max_num_tokens: 2560
  max_num_tokens_per_sample: 2048
  prefer_buffer_before: 1024
  max_buffer_size: 8
  text_cond_dropout_prob: 0.1
  vit_cond_dropout_prob: 0.3
  vae_cond_dropout_prob: 0.1
  interpolate_pos: false
  use_flex: false
  data_seed: 42

dataloader:
  num_workers: 1

bake:
  output: bake
  world_size: 2 # ranks the lanes are laid out for; any number of ranks can read them
  length: {packs_per_lane: 12}
  shard_bytes: 4MiB # small, so that there are several
  executor: inline # ray: the same bytes, on this machine's cores or a cluster's
"""

VLM = """\
# A VLM recipe as NeMo AutoModel spells it: chats about pictures and clips, several a pack.
recipe: FinetuneRecipeForVLM

model: # no weights are read: its processor makes tokens and pixels, its class the positions
  pretrained_model_name_or_path: model

processor:
  _target_: transformers.AutoProcessor.from_pretrained
  pretrained_model_name_or_path: model

dataset:
  _target_: nemo_automodel.components.datasets.vlm.datasets.make_meta_dataset
  path_or_dataset: chats/meta.json

packed_sequence:
  pack_size: 1024
  packing_format: neat # or thd

dataloader:
  shuffle: true

step_scheduler:
  local_batch_size: 2

bake:
  output: vlm-bake
  world_size: 2
  shard_bytes: 8MiB
  executor: inline
"""

NEMOTRON = """\
# Nemotron-VLM-Dataset-v2's layout: rows beside tars of pictures, which are read by range and never unpacked.
recipe: FinetuneRecipeForVLM

model:
  pretrained_model_name_or_path: model

dataset:
  _target_: nemotron_vlm
  path_or_dataset: nemotron # a folder, s3://…, or the hub id nvidia/Nemotron-VLM-Dataset-v2
  subsets: [scenes, pairs]
  sampling: all # or reference, with num_samples: exactly the rows that ModelOpt would choose

packed_sequence:
  pack_size: 1024

step_scheduler:
  local_batch_size: 2

bake:
  output: nemotron-bake
  stream: improved # best-fit packing, faulty rows dropped instead of replaced
  shard_bytes: 8MiB
  executor: inline
"""
