"""What one pack holds, worked out from its own arrays: splits in sequence order, each with what it stands for.

tokens   │bos t t t eos│soi p p p p p p eoi│soi c c c c eoi│   bos/eos, soi/eoi: text tokens
split    │ causal      │ full              │ noise         │   p: ViT patches, c: VAE latent cells
is       │ a text      │ a ViT image       │ a VAE image   │
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from loaders.format import DatasetManifest, PackHeader
from pipeline.errors import Bug
from pipeline.media.patches import unpatchify

__all__ = ["Arrays", "Decode", "PackView", "Pixels", "SampleView", "SplitView", "view_pack"]

Decode = Callable[[Sequence[int]], str]
"""Token ids → text."""

Arrays = Mapping[str, npt.NDArray[Any]]
Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitView:
    """One split of the sequence.

    Attributes:
        kind: What it stands for.
        mode: Its attention: "causal", "full" or "noise".
        start: Index of its first token in the pack.
        num_tokens: Its tokens, marker tokens included.
        first_position: Rope id of its first token.
        last_position: Rope id of its last token.
        token_ids: Ids of its text tokens.
        text: They as text; None if there was no tokenizer to ask.
        num_loss_tokens: Tokens that the cross entropy is taken of.
        loss_weight: Sum of their weights.
        timestep: Flow-matching timestep of a noised VAE image, NaN otherwise.
        pixels: The picture, uint8 [height, width, 3], of a video all frames side by side; None for a text.
        grid: Rows and columns of its patches or latent cells.
        stored_picture: For a VAE image, number of the stored picture in the pack; the same number, the same picture.
    """

    kind: Literal["text", "vit", "vae", "image", "video"]
    mode: str
    start: int
    num_tokens: int
    first_position: int
    last_position: int
    token_ids: tuple[int, ...] = ()
    text: str | None = None
    num_loss_tokens: int = 0
    loss_weight: float = 0.0
    timestep: float = math.nan
    pixels: Pixels | None = field(default=None, repr=False)
    grid: tuple[int, int] = (0, 0)
    stored_picture: int = -1

    @property
    def end(self) -> int:
        """Index after its last token."""
        return self.start + self.num_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleView:
    """One sample: the source row behind it, and its splits.

    `dropped` describes the items that condition dropout took out, as far as the plan is there to say so; `facts` are
    sentences on what else became of the row.
    """

    source: str
    path: str
    row: int
    data_indexes: str
    start: int
    num_tokens: int
    splits: tuple[SplitView, ...]
    dropped: tuple[str, ...] = ()
    facts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PackView:
    """One pack of a bake.

    Attributes:
        bake: URL of the bake.
        position: Position in the canonical order.
        num_positions: Packs of the whole bake.
        lane: Lane that holds it.
        pack: Its number in the lane.
        sequence_length: Its tokens, unpadded.
        max_num_tokens: The budget.
        samples: In sequence order.
        removed: Samples that render had to leave out, with the reason.
        note: Why no texts can be shown, "" if they can.
    """

    bake: str
    position: int
    num_positions: int
    lane: int
    pack: int
    sequence_length: int
    max_num_tokens: int
    samples: tuple[SampleView, ...]
    removed: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tokens:
    """Per token of the pack, what the arrays say of it."""

    text_ids: npt.NDArray[np.int64]  # -1: no text token
    is_vit: npt.NDArray[np.bool_]
    is_vae: npt.NDArray[np.bool_]
    loss_weights: npt.NDArray[np.float32]  # 0: no cross entropy
    has_loss: npt.NDArray[np.bool_]
    timesteps: npt.NDArray[np.float32]  # -inf: no noise
    positions: npt.NDArray[np.int64]


def view_pack(
    header: PackHeader, arrays: Arrays, manifest: DatasetManifest, decode: Decode | None
) -> tuple[SampleView, ...]:
    """The samples of a pack.

    Args:
        header: The pack's header.
        arrays: Its arrays by their stored names; any integer dtype.
        manifest: Facts of the bake.
        decode: Turns ids into text; None: only ids are shown.

    Raises:
        Bug: The splits do not add up to the sequence.
    """
    if sum(header.split_lens) != header.sequence_length:
        raise Bug(
            f"the splits of the pack hold {sum(header.split_lens)} tokens, the pack {header.sequence_length}: what is"
            " shown would be wrong; run `parbake validate`"
        )
    splits = _splits(header, arrays, manifest, decode)
    samples, start = [], 0
    for number, num_tokens in enumerate(header.sample_lens):
        taken: list[SplitView] = []
        while sum(split.num_tokens for split in taken) < num_tokens:
            taken.append(next(splits))
        row = header.provenance[number] if number < len(header.provenance) else None
        indexes = header.batch_data_indexes[number] if number < len(header.batch_data_indexes) else {}
        samples.append(
            SampleView(
                source=row.source if row else "",
                path=row.path if row else "",
                row=row.row if row else -1,
                data_indexes=str(indexes.get("data_indexes", "")),
                start=start,
                num_tokens=num_tokens,
                splits=tuple(taken),
            )
        )
        start += num_tokens
    return tuple(samples)


def _per_token(header: PackHeader, arrays: Arrays) -> _Tokens:
    length = header.sequence_length
    text_ids = np.full(length, -1, dtype=np.int64)
    text_ids[arrays["packed_text_indexes"]] = arrays["packed_text_ids"]
    is_vit, is_vae, has_loss = (np.zeros(length, dtype=np.bool_) for _ in range(3))
    loss_weights = np.zeros(length, dtype=np.float32)
    timesteps = np.full(length, -np.inf, dtype=np.float32)
    none = np.zeros(0, dtype=np.int64)  # () would mean every token
    is_vit[arrays.get("packed_vit_token_indexes", none)] = True
    vae_indexes = arrays.get("packed_vae_token_indexes", none)
    is_vae[vae_indexes] = True
    if "packed_timesteps" in arrays:
        timesteps[vae_indexes] = arrays["packed_timesteps"]
    if "ce_loss_indexes" in arrays:
        has_loss[arrays["ce_loss_indexes"]] = True
        loss_weights[arrays["ce_loss_indexes"]] = arrays["ce_loss_weights"]
    return _Tokens(
        text_ids=text_ids,
        is_vit=is_vit,
        is_vae=is_vae,
        loss_weights=loss_weights,
        has_loss=has_loss,
        timesteps=timesteps,
        positions=np.asarray(arrays["packed_position_ids"], dtype=np.int64),
    )


def _splits(
    header: PackHeader, arrays: Arrays, manifest: DatasetManifest, decode: Decode | None
) -> Iterator[SplitView]:
    tokens = _per_token(header, arrays)
    vit_pictures = _vit_pictures(header, arrays, manifest.vit_patch_size)
    vae_pictures = _vae_pictures(header, arrays)
    start = num_vae = 0
    for num_tokens, mode in zip(header.split_lens, header.attn_modes, strict=True):
        here = slice(start, start + num_tokens)
        ids = tuple(int(token) for token in tokens.text_ids[here] if token >= 0)
        split = SplitView(
            kind="text",
            mode=mode,
            start=start,
            num_tokens=num_tokens,
            first_position=int(tokens.positions[start]),
            last_position=int(tokens.positions[start + num_tokens - 1]),
            token_ids=ids,
        )
        if tokens.is_vit[here].any():
            pixels = next(vit_pictures)
            yield replace(split, kind="vit", pixels=pixels, grid=_grid(pixels, manifest.vit_patch_size))
        elif tokens.is_vae[here].any():
            stored = header.vae_image_index[num_vae]
            timestep = float(tokens.timesteps[here][tokens.is_vae[here]][0])
            yield replace(
                split,
                kind="vae",
                pixels=vae_pictures[stored],
                grid=_grid(vae_pictures[stored], manifest.vae_image_downsample),
                stored_picture=stored,
                timestep=timestep if math.isfinite(timestep) else math.nan,
            )
            num_vae += 1
        else:
            yield replace(
                split,
                text=decode(ids) if decode is not None else None,
                num_loss_tokens=int(tokens.has_loss[here].sum()),
                loss_weight=float(tokens.loss_weights[here].sum()),
            )
        start += num_tokens


def _grid(pixels: Pixels, cell_px: int) -> tuple[int, int]:
    return pixels.shape[0] // cell_px, pixels.shape[1] // cell_px


def _vit_pictures(header: PackHeader, arrays: Arrays, patch_px: int) -> Iterator[Pixels]:
    first = 0
    for height_px, width_px in header.vit_image_sizes:
        num_patches = (height_px // patch_px) * (width_px // patch_px)
        yield unpatchify(arrays["vit_pixels"][first : first + num_patches], height_px, width_px, patch_px)
        first += num_patches


def _vae_pictures(header: PackHeader, arrays: Arrays) -> list[Pixels]:
    pictures, first = [], 0
    for height_px, width_px in header.vae_image_sizes:
        num_bytes = height_px * width_px * 3
        pictures.append(arrays["vae_pixels"][first : first + num_bytes].reshape(height_px, width_px, 3))
        first += num_bytes
    return pictures
