"""Group choice of the improved stream: by weight, without the luck of independent draws.

Independent draws of a group of weight 0.05 stray by several percent over ten thousand draws. Here groups are dealt from
decks: every deck of 256 cards holds each group in proportion to its weight, what rounding leaves over is carried to the
next deck, and each deck is shuffled by the lane's Python stream. After any whole number of decks every group is within
one card of its share.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pipeline.records import Draws

__all__ = ["DECK_SIZE", "deal_groups"]

DECK_SIZE = 256


def deal_groups(weights: Sequence[float], draws: Draws) -> Iterator[int]:
    """Group numbers without end, in proportion to `weights` (not all zero)."""
    total = sum(weights)
    shares = [weight / total * DECK_SIZE for weight in weights]
    owed = [0.0] * len(weights)
    while True:
        owed = [have + share for have, share in zip(owed, shares, strict=True)]
        counts = [int(amount) for amount in owed]
        # The cards still missing go to the groups that are owed the most; ties to the first group.
        for group in sorted(range(len(owed)), key=lambda g: (counts[g] - owed[g], g))[: DECK_SIZE - sum(counts)]:
            counts[group] += 1
        owed = [amount - count for amount, count in zip(owed, counts, strict=True)]
        deck = [group for group, count in enumerate(counts) for _ in range(count)]
        for last in range(len(deck) - 1, 0, -1):  # Fisher-Yates
            other = draws.choice(last + 1)
            deck[last], deck[other] = deck[other], deck[last]
        yield from deck
