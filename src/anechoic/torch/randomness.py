"""The process's own random generators: saved, restored, and fixed while a batch is fetched.

They serve dropout and augmentations. Noise and sampling never draw from them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

# 64 bits each for Python, NumPy and torch, in this order
SEED_BYTES = 24


def rng_state() -> dict[str, Any]:
    """States of the global generators of Python, NumPy, torch, and CUDA where in use, as plain data."""
    version, words, gauss = random.getstate()
    legacy: Any = np.random.get_state(legacy=False)  # noqa: NPY002 - the state that user code draws from
    state: dict[str, Any] = {
        "python": [version, torch.tensor(words), gauss],
        "numpy": [
            legacy["bit_generator"],
            torch.from_numpy(legacy["state"]["key"].astype(np.int64)),
            int(legacy["state"]["pos"]),
            int(legacy["has_gauss"]),
            float(legacy["gauss"]),
        ],
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = [item.cpu() for item in torch.cuda.get_rng_state_all()]
    return state


def set_rng_state(state: dict[str, Any]) -> None:
    """Restore what `rng_state` returned."""
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words.tolist()), gauss))
    name, key, pos, has_gauss, cached = state["numpy"]
    numbers = key.numpy().astype(np.uint32)
    np.random.set_state((name, numbers, pos, has_gauss, cached))  # noqa: NPY002
    torch.set_rng_state(state["torch"])
    if "cuda" in state:
        torch.cuda.set_rng_state_all(state["cuda"])


@contextmanager
def seeded(seed: bytes) -> Iterator[None]:
    """Fix what random, numpy.random and torch (on the CPU) draw inside; outside, nothing changes."""
    python, numpy, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    try:
        random.seed(int.from_bytes(seed[:8], "little"))
        np.random.seed(np.frombuffer(seed[8:16], dtype="<u4"))  # noqa: NPY002
        torch.default_generator.manual_seed(int.from_bytes(seed[16:24], "little"))
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
        torch.set_rng_state(cpu)
