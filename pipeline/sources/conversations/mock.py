"""The mock data set: random pictures and answers from a seed, for smoke tests.

Reference: nemo-automodel 0.7.0 `vlm.mock.build_mock_vlm_dataset`. One generator draws a sample's pictures, then the
words of its answer, sample after sample; to draw a picture again the generator is put where its sample began.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from PIL import Image

from pipeline.sources.conversations.records import Draft
from pipeline.vlm_config import MockConfig
from pipeline.vlm_records import Medium

__all__ = ["MockPictures", "drafts"]

_TEXT = """the image shows a landscape with mountains and rivers flowing through green valleys while clouds drift across
the blue sky and birds fly overhead casting shadows on the ground below where flowers bloom in vibrant colors and trees
sway gently in the warm breeze as sunlight filters through the leaves creating patterns of light and shadow on the
forest floor where small animals scurry about gathering food for the coming winter season while insects buzz around the
wildflowers"""
WORDS = tuple(_TEXT.split())
"""What answers are drawn from: the same words, or the numbers drawn would mean others."""

ANSWER_WORDS = 256


class _Generator:
    """The reference's stream of draws; it can be put where any sample begins."""

    def __init__(self, config: MockConfig) -> None:
        self._config = config
        self._random = np.random.default_rng(config.seed)
        self._starts: list[Any] = [self._random.bit_generator.state]  # where each sample begins

    def sample(self, number: int) -> tuple[list[Image.Image], str]:
        """Pictures and answer of a sample."""
        while len(self._starts) <= number:
            self._draw(len(self._starts) - 1)
            self._starts.append(self._random.bit_generator.state)
        return self._draw(number)

    def _draw(self, number: int) -> tuple[list[Image.Image], str]:
        self._random.bit_generator.state = self._starts[number]
        config = self._config
        width_px, height_px = config.image_size
        pictures = [
            Image.fromarray(self._random.integers(low=0, high=256, size=(height_px, width_px, 3), dtype=np.uint8))
            for _ in range(config.num_images_per_sample)
        ]
        if config.responses is not None:
            return pictures, config.responses[number % len(config.responses)]
        num_words = ANSWER_WORDS if config.max_length is None else config.max_length
        drawn = self._random.integers(0, len(WORDS), size=num_words)
        return pictures, " ".join(WORDS[word] for word in drawn.tolist())


class MockPictures:
    """Pictures by reference ("<sample>/<image>")."""

    def __init__(self, config: MockConfig | None) -> None:
        self._config = config
        self._generator = _Generator(config) if config is not None else None

    @property
    def size(self) -> tuple[int, int]:
        """Width and height in pixels of every picture."""
        assert self._config is not None
        return self._config.image_size

    def picture(self, reference: str) -> Image.Image:
        """The picture, drawn again."""
        assert self._generator is not None
        sample, _, image = reference.partition("/")
        return self._generator.sample(int(sample))[0][int(image)]


def drafts(config: MockConfig) -> Iterator[Draft]:
    """Every row."""
    generator = _Generator(config)
    for number in range(config.num_samples):
        pictures, answer = generator.sample(number)
        question = [{"type": "image", "media": image} for image in range(len(pictures))]
        yield Draft(
            row=number,
            messages=(
                {"role": "user", "content": [*question, {"type": "text", "text": config.prompt}]},
                {"role": "assistant", "content": [{"type": "text", "text": answer}]},
            ),
            media=tuple(
                Medium(kind="image", origin="mock", reference=f"{number}/{image}") for image in range(len(pictures))
            ),
        )
