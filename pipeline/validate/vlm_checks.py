"""Laws and counts of VLM packs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from itertools import accumulate

import numpy as np
import torch

from loaders.errors import FormatError
from loaders.format import DatasetManifest
from loaders.reader import BakeReader
from loaders.shard import StoredPack
from loaders.vlm_format import VlmPackHeader, VlmSettings
from loaders.vlm_order import OrderRule, epoch_order
from loaders.vlm_pack import pack_in_memory
from pipeline.law_report import VLM_LAWS, Violation
from pipeline.validate.findings import ShardFindings
from pipeline.validate.vlm_packs import MEDIA, vlm_pack_violations

__all__ = ["VlmChecks"]

_NOTES = {
    "documents_without_loss": "documents without a token that carries loss",
    "replacements": "documents that stand in for a row that cannot be used",
    "packs_with_float_pixels": "packs whose pixels are stored as float32: they are not of 256 values a channel",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class VlmChecks:
    """See `checks.RecipeChecks`."""

    settings: VlmSettings
    vocab_size: int

    @classmethod
    def of(cls, manifest: DatasetManifest) -> VlmChecks:
        """The checks of a bake.

        Raises:
            FormatError: its settings are not those of a VLM bake.
        """
        return cls(settings=VlmSettings.of(manifest.settings), vocab_size=manifest.vocab_size)

    @property
    def titles(self) -> Mapping[int, str]:
        """The same laws, where they have a meaning here."""
        return VLM_LAWS

    @property
    def token_kinds(self) -> tuple[str, ...]:
        """Texts and media."""
        return "text", "image", "video"

    @property
    def image_kinds(self) -> tuple[str, ...]:
        """Media."""
        return "image", "video"

    def violations(self, key: str, stored: StoredPack[VlmPackHeader]) -> list[Violation]:
        """Laws 1 to 4, and that a batch can be made of the pack."""
        arrays = {name: array.numpy() for name, array in stored.arrays.items()}
        found = vlm_pack_violations(key, stored.header, arrays, self.settings, self.vocab_size)
        try:
            pack_in_memory(stored, self.settings, torch.bfloat16)
        except FormatError as error:
            found.append(Violation(law=6, subject=f"pack {key}", complaint=str(error).partition("; ")[0]))
        return found

    def count(self, findings: ShardFindings, stored: StoredPack[VlmPackHeader]) -> None:
        """Tokens (without alignment), media, bytes of pixels, sources, and what is only told."""
        header, arrays = stored.header, stored.arrays
        num_tokens = sum(header.seq_lens)
        findings.lengths.append(num_tokens)
        findings.numbers.append(header.number)
        types = arrays.get("mm_token_type_ids")
        media_tokens = {kind: 0 if types is None else int((types == of.token_type).sum()) for kind, of in MEDIA.items()}
        findings.tokens.update(
            total=num_tokens,
            padding=header.num_tokens - num_tokens,
            text=num_tokens - sum(media_tokens.values()),
            media=sum(media_tokens.values()),
            label=int((arrays["labels"] != -100).sum()),
            **media_tokens,
        )
        findings.images.update(image=header.n_images, video=header.n_videos)
        self._count_pixels(findings, stored)
        starts = [0, *accumulate(header.seq_lens_padded)]
        for number, (origin, length) in enumerate(zip(header.provenance, header.seq_lens, strict=True)):
            replaces = number < len(header.extra) and "instead_of" in header.extra[number]
            findings.count_sample(origin.source, length)
            findings.source_rows[origin.source] += not replaces
            findings.counted["replacements"] += replaces
            labels = arrays["labels"][starts[number] : starts[number] + length]
            findings.counted["documents_without_loss"] += not bool((labels != -100).any())

    def _count_pixels(self, findings: ShardFindings, stored: StoredPack[VlmPackHeader]) -> None:
        """Bytes that pixels take, and that the processor's float32 would take."""
        as_floats = 0
        for of in MEDIA.values():
            key = of.pixels
            if f"{key}_f4" in stored.arrays:
                values = stored.arrays[f"{key}_f4"]
                findings.num_bytes_of.update(pixels_stored=values.nbytes, pixels_float32=values.nbytes)
                findings.tokens.update(patches=len(values), float32_patches=len(values))
                as_floats = 1
            elif f"{key}_u1" in stored.arrays:
                values, table = stored.arrays[f"{key}_u1"], self.settings.pixel_tables.get(key)
                repeats = table.temporal if table is not None and table.temporal_repeats else 1
                findings.num_bytes_of.update(pixels_stored=values.nbytes, pixels_float32=4 * repeats * values.nbytes)
                findings.tokens["patches"] += len(values)
        findings.counted["packs_with_float_pixels"] += as_floats

    def notes(self, counted: Mapping[str, int]) -> list[str]:
        """What was found and is no fault."""
        return [f"{text}: {counted[name]}" for name, text in _NOTES.items() if counted.get(name)]

    def order_violations(self, findings: Sequence[ShardFindings], reader: BakeReader) -> list[Violation]:
        """Packs lie where epoch 0's order of their numbers puts them."""
        settings, lanes = self.settings, reader.manifest.lanes
        if any(len(found.numbers) != found.num_packs for found in findings):
            return []  # law 6 says why
        lengths = None
        if settings.lengths:
            lengths = np.load(BytesIO(reader.storage.read_bytes(settings.lengths)), allow_pickle=False)
        rule = OrderRule(
            order=settings.order,
            shuffle=settings.shuffle,
            seed=settings.order_seed,
            batch_size=settings.local_batch_size,
        )
        order = epoch_order(rule, settings.num_packs, len(lanes), epoch=0, lengths=lengths)[: settings.num_packs]
        first, violations = 0, []
        for lane, entry in enumerate(lanes):
            found = [number for of_shard in findings if of_shard.lane == lane for number in of_shard.numbers]
            wanted = order[lane :: len(lanes)]
            if settings.shard_data:
                end = first + entry.num_packs
                own_lengths = None if lengths is None else lengths[first:end]
                wanted = first + epoch_order(rule, entry.num_packs, 1, epoch=0, lengths=own_lengths)
                first = end
            if found != wanted.tolist():
                complaint = "its packs are not those that the first epoch reads from it, or in another order"
                violations.append(Violation(law=7, subject=f"lane {lane}", complaint=complaint))
        return violations
