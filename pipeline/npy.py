"""NPY 1.0 bytes of arrays, written here because NumPy's own header padding has changed between versions."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["npy", "npy_header"]

_ALIGNMENT_BYTES = 64


def npy_header(dtype: str, shape: tuple[int, ...]) -> bytes:
    """NPY 1.0 header of a C-ordered array, a multiple of 64 bytes long."""
    shown = f"({shape[0]},)" if len(shape) == 1 else "(" + ", ".join(map(str, shape)) + ")"
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shown}, }}"
    length = 10 + len(text) + 1  # magic, version and length field; text; newline
    padding = -length % _ALIGNMENT_BYTES
    body = f"{text}{' ' * padding}\n".encode("ascii")
    return b"\x93NUMPY\x01\x00" + len(body).to_bytes(2, "little") + body


def npy(array: npt.NDArray[np.generic]) -> bytes:
    """A whole file: header and little-endian values."""
    dtype = np.dtype(array.dtype).newbyteorder("<")
    return npy_header(dtype.str, array.shape) + np.ascontiguousarray(array, dtype=dtype).tobytes()
