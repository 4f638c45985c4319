"""Validate: a finished bake is read as training reads it, and every law that it can show is checked.

packs    laws 1 to 4, of one BAGEL pack, pure; vlm_packs those of a VLM pack
checks   what the laws mean for a recipe: bagel_checks, vlm_checks
shards   law 6 of one shard, and its packs: the unit that executors run
rows     law 5: plan, sidecars, packs and index agree on every source row
replay   laws 7 and 8: one order, and states that name the next step
figures  what is in the bake
run      all of it
"""

from __future__ import annotations

from pipeline.validate.run import validate

__all__ = ["validate"]
