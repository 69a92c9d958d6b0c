"""The backends of a stream, by name."""

from __future__ import annotations

from typing import Any

from anechoic._validate import one_of
from anechoic.noise.arrays import Arrays
from anechoic.noise.numpy_arrays import NumpyArrays
from anechoic.noise.torch_arrays import TorchArrays


def make_arrays(backend: str, dtype: Any, device: Any) -> Arrays:
    """The operations of `backend` for `dtype` on `device`.

    Raises:
        ValueError: if the backend is unknown, the precision too low, or the device not one of NumPy's.
    """
    if one_of("backend", backend, ("numpy", "torch")) == "torch":
        return TorchArrays(dtype, device)
    if device is not None and str(device) != "cpu":
        raise ValueError(f"device={device!r}: NumPy's arrays live on the CPU. Use backend='torch'.")
    return NumpyArrays(dtype)
