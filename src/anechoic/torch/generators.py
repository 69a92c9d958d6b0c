"""The process's own random generators: where they stand, and how they are filled from 32 bytes.

They serve augmentations, dropout and whatever else a training step draws. Noise and batches never draw
from them.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch

from anechoic.errors import GuaranteeError
from anechoic.noise import derive
from anechoic.runs.ledger import Delivery

#: Bytes of a key that a state is expanded from, and words of a state of MT19937.
SEED_BYTES, WORDS = 32, 624
_GLOBAL: Any = np.random  # whose stubs lack two of its functions
#: torch's CPU generator as `torch.get_rng_state` gives it; no documented layout, so it is tried once.
_STATE = np.dtype(
    {
        "names": ["seed", "left", "seeded", "next", "words", "normals"],
        "formats": ["<u8", "<i4", "<i4", "<u8", ("<u8", WORDS), ("<u8", 5)],
    }
)


class States(NamedTuple):
    """Where the global generators stand; of NumPy the bit generator: another takes its place."""

    python: Any
    numpy: Any
    torch: torch.Tensor
    cuda: list[torch.Tensor] | None


def states(*, cuda: bool) -> States:
    """Of Python, NumPy, torch on the CPU, and with `cuda` on GPUs where in use."""
    devices = torch.cuda.get_rng_state_all() if cuda and torch.cuda.is_initialized() else None
    return States(random.getstate(), _GLOBAL.get_bit_generator(), torch.get_rng_state(), devices)


def restore(given: States) -> None:
    """Set the generators to what `states` returned."""
    random.setstate(given.python)
    _GLOBAL.set_bit_generator(given.numpy)
    torch.set_rng_state(given.torch)
    if given.cuda is not None:
        torch.cuda.set_rng_state_all(given.cuda)


def as_data(given: States) -> dict[str, Any]:
    """States as tensors, numbers and strings; of NumPy's none where a script has put another kind there."""
    version, words, gauss = given.python
    state: dict[str, Any] = {"python": [version, torch.tensor(words), gauss], "torch": given.torch}
    if type(given.numpy) is np.random.MT19937:
        inner: Any = given.numpy.state["state"]
        state["numpy"] = [torch.from_numpy(inner["key"].astype(np.int64)), int(inner["pos"])]
    return state if given.cuda is None else {**state, "cuda": [item.cpu() for item in given.cuda]}


def from_data(state: dict[str, Any]) -> States:
    """What `as_data` was given."""
    version, words, gauss = state["python"]
    numpy: Any = _GLOBAL.get_bit_generator()
    if "numpy" in state:
        key, place = state["numpy"]
        numpy = np.random.MT19937()
        inner = {"key": key.numpy().astype(np.uint32), "pos": place}
        numpy.state = {"bit_generator": "MT19937", "state": inner}
    return States((version, tuple(words.tolist()), gauss), numpy, state["torch"], state.get("cuda"))


@contextmanager
def seeded(seed: bytes) -> Iterator[None]:
    """Fix by 32 bytes what random, numpy.random and torch (on the CPU) draw inside; put them back after."""
    outside = states(cuda=False)
    try:
        fix(seed, np.random.MT19937(), cuda=False)
        yield
    finally:
        restore(outside)


def fix(seed: bytes, numpy: Any, *, cuda: bool) -> None:
    """Fill every generator from 32 bytes; torch's whole state, as torch.manual_seed keeps 32 bits of a seed.

    `numpy`, a `numpy.random.MT19937`, takes the place of the global one, whose state stays as it is.
    """
    check_layout()
    drawn = derive(seed, "generators", size=4 * WORDS + 72)
    random.seed(int.from_bytes(drawn[:32], "little"))
    _GLOBAL.set_bit_generator(numpy)
    np.random.seed(np.frombuffer(drawn[32:64], dtype="<u4"))  # noqa: NPY002 - it is the global one
    words = np.frombuffer(drawn[64:-8], dtype="<u4")
    torch.set_rng_state(cpu_state(words, int.from_bytes(drawn[-8:-1], "little")))
    if cuda and torch.cuda.is_initialized():
        for device in range(torch.cuda.device_count()):
            # Philox: 64 bits of seed, and as many of position but for those that must stay free
            number, place = np.frombuffer(derive(seed, "cuda", device, size=16), dtype="<u8").tolist()
            state = np.array([number, (place >> 4) << 2], dtype="<u8")
            torch.cuda.set_rng_state(torch.from_numpy(state.view(np.uint8)), device)


def cpu_state(words: Any, number: int) -> torch.Tensor:
    """A state of torch's CPU generator: `words`, uint32, shape (624,), and what initial_seed() is to say."""
    state = np.zeros(1, _STATE)
    state["seed"] = number  # what torch.initial_seed() says; nothing is drawn from it
    state["left"] = state["seeded"] = 1
    state["words"] = words
    return torch.from_numpy(state.view(np.uint8))


@functools.cache
def check_layout() -> None:
    """Check once that a filled state means what is meant: raw outputs are those of NumPy's mt19937."""
    words = np.arange(1, WORDS + 1, dtype=np.uint32) * np.uint32(2654435761)
    reference, ours = np.random.MT19937(0), torch.Generator(device="cpu")
    reference.state = {"bit_generator": "MT19937", "state": {"key": words, "pos": WORDS}}
    try:
        ours.set_state(cpu_state(words, 7))
        drawn = torch.empty(2 * WORDS, dtype=torch.int32, device="cpu").random_(generator=ours).numpy()
        same = ours.initial_seed() == 7 and bool((drawn == reference.random_raw(2 * WORDS) % 2**31).all())
    except (RuntimeError, TypeError):
        same = False
    if not same:
        raise GuaranteeError(
            f"the generator of PyTorch {torch.__version__} is laid out in another way than is known here: use"
            " a tested version of PyTorch (see constraints.txt)."
        )


class StepGenerators:
    """The global generators from a delivery to its step(): functions of the sampling key and t, and secret.

    So evaluation, logging or other draws between two steps change nothing in a release, and a resumed run
    draws what the first one drew. A state that the script sets meanwhile (`torch.manual_seed`) is known to
    whoever knows the script: with the next call of the model the generators are set by the key once more.
    """

    def __init__(self, feed: Any) -> None:
        self._feed = feed
        self._delivery: Delivery | None = None
        self._outside: States | None = None
        self._numpy = np.random.MT19937()
        self._fixed = self._set = 0

    def deliver(self, delivery: Delivery) -> None:
        """Set them for one physical batch; where they stood is kept."""
        self._outside, self._delivery, self._fixed = states(cuda=True), delivery, 0
        self.take()

    def take(self) -> None:
        """Set them for a call of the model, unless they stand where this object set them, or further."""
        if self._delivery is None or (self._fixed and self._set == torch.initial_seed()):
            return
        again = (self._fixed,) if self._fixed else ()
        self._fixed += 1
        self.seed("training step", self._delivery.place, *again)

    def seed(self, domain: str, *numbers: int) -> None:
        """Set them for a part of the work on the batch in hand."""
        step = 0 if self._delivery is None else self._delivery.step
        seed = derive(self._feed.key, domain, step, *numbers, size=SEED_BYTES)
        fix(seed, self._numpy, cuda=True)
        self._set = torch.initial_seed()

    def settle(self) -> None:
        """Put them back where they stood: the batch was stepped or given up."""
        outside, self._outside, self._delivery = self._outside, None, None
        if outside is not None:
            restore(outside)
