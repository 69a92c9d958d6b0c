"""The process's own random generators: functions of the sampling key and t while a batch is worked on.

They serve augmentations, dropout and whatever else a training step draws. Noise and batches never draw
from them.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from anechoic.errors import GuaranteeError
from anechoic.noise import derive
from anechoic.runs.ledger import Delivery

# a key: what a state is expanded from
SEED_BYTES = 32

WORDS = 624
#: torch's CPU generator as `torch.get_rng_state` gives it; no documented layout, so it is tried once.
_STATE = np.dtype(
    [
        ("seed", "<u8"),
        ("left", "<i4"),
        ("seeded", "<i4"),
        ("next", "<u8"),
        ("words", "<u8", WORDS),
        ("normals", "<u8", 5),
    ]
)


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


class Surroundings:
    """Global generators while a batch is worked on: set when it is delivered, given back after its step().

    So evaluation, logging or other draws between two steps change nothing in a release, and a resumed run
    draws what the first one drew. Masks and augmentations are as secret as the sampling key.

    Args:
        key: the sampling key, asked for at each batch.
    """

    def __init__(self, key: Any) -> None:
        self._key = key
        self._outside: tuple[Any, ...] | None = None

    def deliver(self, delivery: Delivery) -> None:
        """Set the generators for one physical batch."""
        seed = derive(self._key(), "training step", delivery.step, delivery.chunk, size=SEED_BYTES)
        outside = _states(cuda=True)
        _fix(seed, cuda=True)
        self._outside = outside if self._outside is None else self._outside

    def settle(self) -> None:
        """Give the generators back as they were when the batch was delivered; nothing to do without one."""
        outside, self._outside = self._outside, None
        if outside is not None:
            _restore(outside)


@contextmanager
def seeded(seed: bytes) -> Iterator[None]:
    """Fix what random, numpy.random and torch (on the CPU) draw inside; outside, nothing changes.

    Args:
        seed: 32 bytes.
    """
    outside = _states(cuda=False)
    try:
        _fix(seed, cuda=False)
        yield
    finally:
        _restore(outside)


def _states(*, cuda: bool) -> tuple[Any, ...]:
    devices = torch.cuda.get_rng_state_all() if cuda and _cuda() else None
    return random.getstate(), np.random.get_state(), torch.get_rng_state(), devices  # noqa: NPY002


def _restore(states: tuple[Any, ...]) -> None:
    python, numpy, cpu, devices = states
    random.setstate(python)
    np.random.set_state(numpy)  # noqa: NPY002
    torch.set_rng_state(cpu)
    if devices is not None:
        torch.cuda.set_rng_state_all(devices)


def _fix(seed: bytes, *, cuda: bool) -> None:
    """Fill every generator from `seed`: whole states, because torch.manual_seed keeps 32 bits on the CPU."""
    check_layout()
    size = 4 * WORDS
    random.setstate((3, (*_words(derive(seed, "random", size=size)).tolist(), WORDS), None))
    words = _words(derive(seed, "numpy", size=size))
    np.random.set_state(("MT19937", words, WORDS, 0, 0.0))  # noqa: NPY002
    number = int.from_bytes(derive(seed, "initial seed", size=7), "little")
    torch.set_rng_state(cpu_state(_words(derive(seed, "torch", size=size)), number))
    if cuda and _cuda():
        for device in range(torch.cuda.device_count()):
            # Philox: 64 bits of seed, and as many of position but for those that must stay free
            number, place = np.frombuffer(derive(seed, "cuda", device, size=16), dtype="<u8").tolist()
            state = np.array([number, (place >> 4) << 2], dtype="<u8")
            torch.cuda.set_rng_state(torch.from_numpy(state.view(np.uint8)), device)


def _cuda() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_initialized()


def _words(content: bytes) -> Any:
    return np.frombuffer(content, dtype="<u4").astype(np.uint32)


def cpu_state(words: Any, number: int) -> torch.Tensor:
    """A state of torch's CPU generator: `words`, uint32, shape (624,), and what initial_seed() is to say."""
    state = np.zeros(1, _STATE)
    state["seed"] = number  # what torch.initial_seed() says; nothing is drawn from it
    state["left"] = state["seeded"] = 1
    state["words"] = words
    return torch.from_numpy(state.view(np.uint8))


@functools.cache
def check_layout() -> None:
    """Check once that a filled state means what is meant: raw outputs are those of NumPy's mt19937.

    Raises:
        GuaranteeError: otherwise.
    """
    words = np.arange(1, WORDS + 1, dtype=np.uint32) * np.uint32(2654435761)
    reference = np.random.MT19937(0)
    reference.state = {"bit_generator": "MT19937", "state": {"key": words, "pos": WORDS}}
    ours = torch.Generator(device="cpu")
    try:
        ours.set_state(cpu_state(words, 7))
        drawn = torch.empty(WORDS, dtype=torch.int64, device="cpu").random_(-(2**63), None, generator=ours)
        same = ours.initial_seed() == 7 and _in_pairs(drawn.numpy().view(np.uint32)) == _in_pairs(
            reference.random_raw(2 * WORDS)
        )
    except (RuntimeError, TypeError):
        same = False
    if not same:
        raise GuaranteeError(
            f"the generator of PyTorch {torch.__version__} is laid out in another way than is known here, so"
            " a training step's random numbers cannot be made secret: use a tested version of PyTorch (see"
            " constraints.txt)."
        )


def _in_pairs(words: Any) -> list[list[int]]:
    """32-bit outputs by two: which of them becomes the upper half of 64 bits is no matter."""
    return np.sort(words.astype(np.uint64).reshape(-1, 2), axis=1).tolist()  # type: ignore[no-any-return]
