"""Fresh noise levels for a repeated epoch: a pure function of (seed, epoch, lane, pack).

The plan draws one timestep `randn()` per noised VAE image (reference: `PackedDataset.pack_sequence`), and all tokens of
the image carry it; conditioning images carry -inf. A second epoch over the same shards would show every picture at the
very noise level of the first, so it may draw again.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["redraw_timesteps"]

_MASK32 = (1 << 32) - 1


def redraw_timesteps(
    packed_timesteps: npt.NDArray[np.float32],
    image_shapes: Sequence[tuple[int, int]],
    *,
    seed: int,
    epoch: int,
    lane: int,
    pack: int,
) -> npt.NDArray[np.float32]:
    """New timesteps for a pack: float32 [VAE tokens], one standard normal draw per noised image, -inf where it was.

    Drawn from NumPy's legacy MT19937 stream, which NumPy has frozen: the same values with every version.

    Args:
        packed_timesteps: The plan's timesteps, float32 [VAE tokens].
        image_shapes: (rows, columns) of latent cells of each VAE image of the batch.
        seed: Seed of the bake or of the loader.
        epoch: Epoch; 0 returns the plan's timesteps.
        lane: Lane of the pack.
        pack: Its number in the lane.
    """
    if epoch == 0:
        return packed_timesteps
    key = [seed & _MASK32, seed >> 32 & _MASK32, epoch & _MASK32, lane & _MASK32, pack & _MASK32, pack >> 32 & _MASK32]
    stream = np.random.RandomState(np.array(key, dtype=np.uint32))
    redrawn = packed_timesteps.copy()
    start = 0
    for rows, columns in image_shapes:
        end = start + rows * columns
        if np.isfinite(redrawn[start:end]).all():
            redrawn[start:end] = stream.randn()
        start = end
    return redrawn
