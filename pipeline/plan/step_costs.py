"""What the packs of a lane cost, kept small, and how uneven that leaves the steps of a bake."""

from __future__ import annotations

import base64
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

__all__ = ["LaneCosts", "imbalance"]

Costs = npt.NDArray[np.float32]


@dataclass(slots=True)
class LaneCosts:
    """Cost of each pack of a lane in the order in which the lane hands them out: eight bytes a pack.

    Attributes:
        costs: `sample_cost` of the pack's samples together.
        packed_as: Number of the pack in the order in which it was packed.
    """

    costs: array[float] = field(default_factory=lambda: array("f"))
    packed_as: array[int] = field(default_factory=lambda: array("I"))

    def add(self, cost: float, packed_as: int) -> None:
        """The next pack."""
        self.costs.append(cost)
        self.packed_as.append(packed_as)

    def handed_out(self) -> Costs:
        """Costs in the lane's order, [packs]."""
        return np.array(self.costs, dtype=np.float32)

    def as_packed(self) -> Costs:
        """Costs of the same packs in packing order: what `balance: off` would hand out, [packs]."""
        return self.handed_out()[np.argsort(np.array(self.packed_as, dtype=np.int64), kind="stable")]

    def to_json(self) -> dict[str, str]:
        """Base64 of little-endian float32 and uint32."""
        packed_as = np.array(self.packed_as, dtype="<u4").tobytes()
        costs = np.array(self.costs, dtype="<f4").tobytes()
        return {"costs": base64.b64encode(costs).decode(), "packed_as": base64.b64encode(packed_as).decode()}

    @classmethod
    def from_json(cls, written: Mapping[str, str]) -> LaneCosts:
        """Read it back."""
        costs = np.frombuffer(base64.b64decode(written["costs"]), "<f4")
        packed_as = np.frombuffer(base64.b64decode(written["packed_as"]), "<u4")
        return cls(array("f", costs.tolist()), array("I", packed_as.tolist()))


def imbalance(costs_by_lane: Sequence[Costs], world_size: int) -> float:
    """Mean over steps of (largest cost of the step / mean cost of the step); 1.0 where there is no whole step.

    A step is `world_size` consecutive positions of the canonical order (design.md): pack 0 of every lane, then pack 1
    of every lane, and so on; lanes that have ended are left out, and so is a ragged tail.
    """
    num_rounds = max((len(costs) for costs in costs_by_lane), default=0)
    table = np.zeros((num_rounds, len(costs_by_lane)))  # [packs of the longest lane, lanes]
    is_there = np.zeros(table.shape, dtype=bool)
    for lane, costs in enumerate(costs_by_lane):
        table[: len(costs), lane] = costs
        is_there[: len(costs), lane] = True
    in_order = table[is_there]  # [positions]
    steps = in_order[: len(in_order) // world_size * world_size].reshape(-1, world_size)
    means = steps.mean(axis=1) if len(steps) else np.zeros(0)
    ratios = steps.max(axis=1)[means > 0] / means[means > 0] if len(steps) else means
    return float(ratios.mean()) if len(ratios) else 1.0
