"""Any pack explains itself: from a position to source rows, texts, pictures, splits and losses.

    bake, position ──reading──► header, arrays ──view or vlm_view──► PackView ──┬─ console   tables on the terminal
                                                                                └─ page      HTML with the pictures

Everything shown comes from the shard itself, read as training reads it. Two things are looked up elsewhere in the bake:
the tokenizer that turns ids back into texts (`config.yaml`), and what condition dropout took out (`dropped`: the plan).
"""

from __future__ import annotations

from pipeline.inspect.console import print_pack
from pipeline.inspect.page import write_page
from pipeline.inspect.reading import describe, describe_step
from pipeline.inspect.view import PackView, SampleView, SplitView, view_pack

__all__ = ["PackView", "SampleView", "SplitView", "describe", "describe_step", "print_pack", "view_pack", "write_page"]
