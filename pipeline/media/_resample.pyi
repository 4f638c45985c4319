"""Built from `_resample.c`; absent where there was no compiler, `resize` absent where the processor lacks AVX2."""

import numpy as np
from numpy.typing import NDArray

def resize(
    arrow_array: object, size: tuple[int, int], new_size: tuple[int, int], out: NDArray[np.uint8], /
) -> None: ...
