"""Laws and counts of BAGEL packs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from loaders.format import DatasetManifest, PackHeader
from loaders.reader import BakeReader
from loaders.shard import StoredPack
from pipeline.law_report import LAWS, Violation
from pipeline.validate.findings import ShardFindings
from pipeline.validate.packs import PackLimits, pack_violations

__all__ = ["BagelChecks"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BagelChecks:
    """See `checks.RecipeChecks`."""

    limits: PackLimits

    @classmethod
    def of(cls, manifest: DatasetManifest) -> BagelChecks:
        """The checks of a bake."""
        limits = PackLimits(
            max_num_tokens=manifest.max_num_tokens,
            max_num_tokens_per_sample=int(manifest.settings.get("max_num_tokens_per_sample", 0)),
            vocab_size=manifest.vocab_size,
            counts_only=manifest.settings.get("packer", "greedy") == "greedy",
            vae_image_downsample=manifest.vae_image_downsample,
            vit_patch_size=manifest.vit_patch_size,
        )
        return cls(limits=limits)

    @property
    def titles(self) -> Mapping[int, str]:
        """design.md's laws."""
        return LAWS

    @property
    def token_kinds(self) -> tuple[str, ...]:
        """Texts and the two towers."""
        return "text", "vit", "vae"

    @property
    def image_kinds(self) -> tuple[str, ...]:
        """Images of the batch, and VAE pictures that are stored."""
        return "vit", "vae", "vae_stored"

    def violations(self, key: str, stored: StoredPack[PackHeader]) -> list[Violation]:
        """Laws 1 to 4."""
        arrays = {name: array.numpy() for name, array in stored.arrays.items()}
        return pack_violations(key, stored.header, arrays, self.limits)

    def count(self, findings: ShardFindings, stored: StoredPack[PackHeader]) -> None:
        """Tokens, images, groups, and what the greedy packer exceeds where the reference does."""
        header, limits = stored.header, self.limits
        findings.lengths.append(header.sequence_length)
        findings.tokens["total"] += header.sequence_length
        for kind, name in (
            ("text", "packed_text_indexes"),
            ("vit", "packed_vit_token_indexes"),
            ("vae", "packed_vae_token_indexes"),
        ):
            findings.tokens[kind] += stored.arrays[name].numel() if name in stored.arrays else 0
        findings.images.update(
            vit=len(header.vit_image_sizes), vae=len(header.vae_image_index), vae_stored=len(header.vae_image_sizes)
        )
        findings.counted["packs_above_max_num_tokens"] += header.sequence_length > limits.max_num_tokens
        if limits.max_num_tokens_per_sample:
            findings.counted["samples_above_max_num_tokens_per_sample"] += sum(
                length > limits.max_num_tokens_per_sample for length in header.sample_lens
            )
        for length, indexes, origin in zip(
            header.sample_lens, header.batch_data_indexes, header.provenance, strict=False
        ):
            findings.count_sample(str(indexes.get("dataset_name", "")), length)
            findings.source_rows[origin.source] += 1

    def notes(self, counted: Mapping[str, int]) -> list[str]:
        """How often a budget was exceeded."""
        return [f"{name.replace('_', ' ')}: {count}, as in the reference" for name, count in counted.items()]

    def order_violations(self, findings: Sequence[ShardFindings], reader: BakeReader) -> list[Violation]:
        """BAGEL packs have no number but their place."""
        return []
