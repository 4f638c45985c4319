"""Ids, labels and media of a conversation equal nemo-automodel's pre-tokenising wrapper; predictions equal them."""

from __future__ import annotations

import copy
import pickle
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from nemo_automodel.components.datasets.vlm.collate_fns import build_labels_from_template
from nemo_automodel.components.datasets.vlm.datasets import PreTokenizedDatasetWrapper
from PIL import Image

from pipeline.errors import ConfigError
from pipeline.processor import VlmProcessor, label_tokens, load_processor
from tests.datamaker.processor import write_processor


@pytest.fixture(scope="module")
def processor(tmp_path_factory: pytest.TempPathFactory) -> VlmProcessor:
    return load_processor(str(write_processor(tmp_path_factory.mktemp("processor"))))


def picture(width: int, height: int, seed: int = 0) -> Image.Image:
    pixels = np.random.RandomState(seed).randint(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def turn(role: str, *parts: Any) -> dict[str, Any]:
    return {"role": role, "content": list(parts)}


def image() -> dict[str, Any]:
    return {"type": "image"}


CONVERSATIONS: dict[str, tuple[list[dict[str, Any]], list[Image.Image]]] = {
    "one image": ([turn("user", image(), part("what is it?")), turn("assistant", part("a circle"))], [picture(60, 90)]),
    "two images": (
        [turn("user", image(), part("and"), image(), part("?")), turn("assistant", part("both are red"))],
        [picture(300, 40, 1), picture(28, 28, 2)],
    ),
    "several turns": (
        [
            turn("system", part("be short")),
            turn("user", image(), part("colour?")),
            turn("assistant", part("blue")),
            turn("user", part("shape?")),
            turn("assistant", part("square")),
        ],
        [picture(200, 150, 3)],
    ),
    "text only": ([turn("user", part("hello")), turn("assistant", part("the quick brown fox"))], []),
    "no answer": ([turn("user", image(), part("what?"))], [picture(56, 56, 4)]),
    "an answer that spells a marker": (
        [turn("user", part("say it")), turn("assistant", part("<|im_start|>assistant\nhm"))],
        [],
    ),
}


def with_pictures(conversation: list[dict[str, Any]], images: list[Image.Image]) -> list[dict[str, Any]]:
    """The reference's form: pictures inside the parts."""
    filled, remaining = copy.deepcopy(conversation), iter(images)
    for message in filled:
        for entry in message["content"]:
            if entry["type"] == "image":
                entry["image"] = next(remaining)
    return filled


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_encoding_equals_the_references(processor: VlmProcessor, name: str) -> None:
    conversation, images = CONVERSATIONS[name]
    rows = [{"conversation": with_pictures(conversation, images)}]
    expected = PreTokenizedDatasetWrapper(rows, processor.processor, inject_fake_images=False)[0]
    actual = processor.encode(conversation, images, [])
    assert torch.equal(torch.from_numpy(actual.input_ids), expected["input_ids"])
    assert torch.equal(torch.from_numpy(actual.labels), expected["labels"])
    assert actual.mm_token_type_ids is not None
    assert torch.equal(torch.from_numpy(actual.mm_token_type_ids), expected["mm_token_type_ids"][0].long())
    for key in ("pixel_values", "image_grid_thw"):
        assert (key in actual.media) == (key in expected)
        if key in expected:
            assert torch.equal(actual.media[key], expected[key])


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_a_prediction_from_sizes_equals_the_encoding(processor: VlmProcessor, name: str) -> None:
    conversation, images = CONVERSATIONS[name]
    real = processor.encode(conversation, images, [])
    predicted = processor.predict(conversation, [(picture.height, picture.width) for picture in images])
    assert predicted.input_ids.tolist() == real.input_ids.tolist()
    assert predicted.labels.tolist() == real.labels.tolist()
    assert predicted.mm_token_type_ids is not None
    assert real.mm_token_type_ids is not None
    assert predicted.mm_token_type_ids.tolist() == real.mm_token_type_ids.tolist()


def test_a_video_is_predicted_from_its_frames(processor: VlmProcessor) -> None:
    frames = [picture(70, 50, seed) for seed in range(6)]
    conversation = [turn("user", {"type": "video"}, part("what moves?")), turn("assistant", part("the dot"))]
    metadata = {"total_num_frames": 6, "fps": 2.0, "frames_indices": list(range(6))}
    real = processor.encode(conversation, [], [frames], [metadata])
    predicted = processor.predict(conversation, [], [(6, 50, 70)])
    assert predicted.input_ids.tolist() == real.input_ids.tolist()
    assert predicted.mm_token_type_ids is not None
    assert real.mm_token_type_ids is not None
    assert predicted.mm_token_type_ids.tolist() == real.mm_token_type_ids.tolist()


def test_labels_equal_the_references_on_any_tokens(processor: VlmProcessor) -> None:
    opening, end = processor.markers
    generator = random.Random(0)
    for _ in range(200):
        tokens = generator.choices([*opening, end, 50, 51], k=generator.randint(0, 30))
        ids = np.array(tokens, dtype=np.int64)
        expected = build_labels_from_template(torch.from_numpy(ids)[None], [[]], processor.processor)[0]
        assert label_tokens(ids, opening, end).tolist() == expected.tolist()


def test_a_processor_travels_as_its_path(processor: VlmProcessor) -> None:
    copied = pickle.loads(pickle.dumps(processor))
    assert copied.fingerprint == processor.fingerprint


def test_a_missing_processor_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere"):
        load_processor(str(tmp_path / "nowhere"))
