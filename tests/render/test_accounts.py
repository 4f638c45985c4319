"""No row vanishes from the accounts, and too many losses stop the bake."""

from __future__ import annotations

import pytest

from pipeline.errors import TooManyDrops
from pipeline.plan_table import LanePlan, PlanManifest
from pipeline.render.accounts import refuse_too_many_drops, row_accounts


def account(drawn, packed, dropped=None, discarded=0, waiting=0):
    return {"drawn": drawn, "packed": packed, "dropped": dropped or {}, "discarded": discarded, "waiting": waiting}


def manifest(*lanes, not_assigned=None):
    return PlanManifest(
        stream="s",
        fingerprints={},
        world_size=len(lanes),
        num_workers=1,
        lanes=lanes,
        special_tokens={},
        vocab_size=1,
        not_assigned=not_assigned or {},
        statistics={},
        versions={},
    )


def test_accounts_are_summed_over_lanes_pass_by_pass():
    plan = manifest(
        LanePlan(
            shards=(),
            rows={"g/a": [account(10, 7, {"zero_bytes": 2}, waiting=1), account(3, 3)]},
            not_reached={"g/a": 0},
        ),
        LanePlan(shards=(), rows={"g/a": [account(5, 3, {"zero_bytes": 1, "too_long": 1})]}, not_reached={"g/a": 4}),
        not_assigned={"g/a": 2, "g/b": 9},
    )
    rows = row_accounts(plan, [{("g/a", "decode_error"): 1}, {}, {("g/a", "decode_error"): 2}])
    assert rows == {
        "g/a": {
            "passes": [
                account(15, 10, {"too_long": 1, "zero_bytes": 3}, waiting=1),
                account(3, 3),
            ],
            "dropped_in_render": {"decode_error": 3},
            "not_reached": 4,
            "not_assigned": 2,
        },
        "g/b": {"passes": [], "dropped_in_render": {}, "not_reached": 0, "not_assigned": 9},
    }


@pytest.mark.parametrize(("in_render", "limit", "refused"), [(1, 0.15, False), (2, 0.15, True), (2, 0.2, False)])
def test_the_limit_counts_index_plan_and_render_together(in_render, limit, refused):
    plan = manifest(
        LanePlan(shards=(), rows={"g/a": [account(20, 18, {"zero_bytes": 1, "too_long": 1})]}, not_reached={})
    )
    rows = row_accounts(plan, [{("g/a", "decode_error"): in_render}])
    if refused:
        with pytest.raises(TooManyDrops, match=r"g/a lost 4 of 20 rows \(20\.0%; decode_error 2, "):
            refuse_too_many_drops(rows, limit)
    else:
        refuse_too_many_drops(rows, limit)


def test_a_source_that_was_never_drawn_from_is_not_judged():
    refuse_too_many_drops(row_accounts(manifest(not_assigned={"g/a": 3}), []), 0.0)
