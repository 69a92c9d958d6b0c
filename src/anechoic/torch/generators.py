"""The process's own random generators: where they stand, and how they are filled from 32 bytes.

They serve augmentations, dropout and whatever else a training step draws. Noise and batches never draw
from them.
"""

from __future__ import annotations

import ctypes
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


class States(NamedTuple):
    """Where the global generators stand.

    Attributes:
        cuda: of all devices; None where CUDA is not in use.
    """

    python: Any
    numpy: Any
    torch: torch.Tensor
    cuda: list[torch.Tensor] | None


class _ByMemory(np.random.MT19937):
    """Another MT19937, read and set by its memory: NumPy does so word by word, which takes a tenth of a step.

    Attributes:
        address: of its 624 words, behind which is the place of the next one.
    """

    address: int

    @property
    def state(self) -> Any:
        content = np.frombuffer(ctypes.string_at(self.address, 4 * (WORDS + 1)), np.uint32)
        return {"bit_generator": "MT19937", "state": {"key": content[:WORDS], "pos": int(content[WORDS])}}

    @state.setter
    def state(self, given: Any) -> None:
        inner = given["state"]
        content = np.empty(WORDS + 1, np.uint32)
        content[:WORDS], content[WORDS] = inner["key"], inner["pos"]
        ctypes.memmove(self.address, content.tobytes(), content.nbytes)


@contextmanager
def _numpy(of: Any = None) -> Iterator[Any]:
    """NumPy's global generator, whose `get_state` and `set_state` are quick inside where that is possible.

    Draws come from `own` all the while: only who asks for a state, or sets one, is sent to the memory.
    """
    generator = np.random.mtrand._rand if of is None else of
    own = generator._bit_generator
    if type(own) is not np.random.MT19937 or (of is None and not _quick()):
        yield generator
        return
    stand_in = _stand_in()
    stand_in.address = own.ctypes.state_address
    generator._bit_generator = stand_in
    try:
        yield generator
    finally:
        generator._bit_generator = own


@functools.cache
def _stand_in() -> _ByMemory:
    return _ByMemory(0)


@functools.cache
def _quick() -> bool:
    """Check once that NumPy's memory is laid out as is known here; else its own way is taken."""
    one, two = np.random.RandomState(1), np.random.RandomState(2)
    one.standard_normal(3)
    kept: Any = one.get_state()
    try:
        with _numpy(one) as quick:
            read = quick.get_state()
        with _numpy(two) as quick:
            quick.set_state(kept)
    except (AttributeError, TypeError, ValueError):
        return False
    same = str(read) == str(kept) and np.array_equal(read[1], kept[1])
    return same and np.array_equal(two.standard_normal(700), one.standard_normal(700))


def states(*, cuda: bool) -> States:
    """Of Python, NumPy, torch on the CPU, and with `cuda` on GPUs where in use."""
    devices = torch.cuda.get_rng_state_all() if cuda and torch.cuda.is_initialized() else None
    with _numpy() as numpy:
        return States(random.getstate(), numpy.get_state(), torch.get_rng_state(), devices)


def restore(given: States) -> None:
    """Set the generators to what `states` returned."""
    random.setstate(given.python)
    with _numpy() as numpy:
        numpy.set_state(given.numpy)
    torch.set_rng_state(given.torch)
    if given.cuda is not None:
        torch.cuda.set_rng_state_all(given.cuda)


def as_data(given: States) -> dict[str, Any]:
    """States as tensors, numbers and strings."""
    version, words, gauss = given.python
    name, key, pos, has_gauss, cached = given.numpy
    numbers = torch.from_numpy(key.astype(np.int64))
    state: dict[str, Any] = {
        "python": [version, torch.tensor(words), gauss],
        "numpy": [name, numbers, int(pos), int(has_gauss), float(cached)],
        "torch": given.torch,
    }
    return state if given.cuda is None else {**state, "cuda": [item.cpu() for item in given.cuda]}


def from_data(state: dict[str, Any]) -> States:
    """What `as_data` was given."""
    version, words, gauss = state["python"]
    name, key, *rest = state["numpy"]
    numpy = (name, key.numpy().astype(np.uint32), *rest)
    return States((version, tuple(words.tolist()), gauss), numpy, state["torch"], state.get("cuda"))


@contextmanager
def seeded(seed: bytes) -> Iterator[None]:
    """Fix what random, numpy.random and torch (on the CPU) draw inside; outside, nothing changes.

    Args:
        seed: 32 bytes.
    """
    outside = states(cuda=False)
    try:
        fix(seed, cuda=False)
        yield
    finally:
        restore(outside)


def fix(seed: bytes, *, cuda: bool, secret: bool = False) -> None:
    """Fill every generator from `seed`; torch's whole state, because torch.manual_seed keeps 32 bits of it.

    Args:
        seed: 32 bytes.
        cuda: those of GPUs in use, too.
        secret: mark torch's state as one that is to be kept secret; see `is_secret`.
    """
    check_layout()
    drawn = derive(seed, "generators", size=4 * WORDS + 72)
    random.seed(int.from_bytes(drawn[:32], "little"))
    np.random.seed(np.frombuffer(drawn[32:64], dtype="<u4"))  # noqa: NPY002 - it is the global one
    words = np.frombuffer(drawn[64:-8], dtype="<u4")
    number = int.from_bytes(drawn[-8:-1], "little")
    number = marked(number) if secret else number
    torch.set_rng_state(cpu_state(words, number))
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


def marked(number: int) -> int:
    """38 bits of `number` and a tag: an initial_seed() that no script sets by chance."""
    own = number % 2**38
    return own << 24 | _tag(own)


def is_secret(number: int) -> bool:
    """Whether torch.initial_seed() is that of a state that a run set, and not of one that a script seeded."""
    return 0 <= number < 2**62 and number % 2**24 == _tag(number >> 24)


def _tag(own: int) -> int:
    return (own * 0x9E3779B97F4A7C15 + 0x5851F42D4C957F2D) % 2**64 >> 40


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


class StepGenerators:
    """The global generators from a delivery to its step(): functions of the sampling key and t, and secret.

    So evaluation, logging or other draws between two steps change nothing in a release, and a resumed run
    draws what the first one drew. A state that the script sets meanwhile (`torch.manual_seed`) is known to
    whoever knows the script: with the next call of the model the generators are set by the key once more.

    Args:
        feed: has the sampling key, which is asked for at each batch.
    """

    def __init__(self, feed: Any) -> None:
        self._feed = feed
        self._delivery: Delivery | None = None
        self._outside: States | None = None
        self._fixed = 0

    def deliver(self, delivery: Delivery) -> None:
        """Set them for one physical batch; where they stood is kept."""
        self.settle()
        self._outside, self._delivery, self._fixed = states(cuda=True), delivery, 0
        self.take()

    def take(self) -> None:
        """Set them for a call of the model, unless they stand where this object set them, or further."""
        if self._delivery is None or (self._fixed and is_secret(torch.initial_seed())):
            return
        again = (self._fixed,) if self._fixed else ()
        self._fixed += 1
        fix(self.seed("training step", self._delivery.place, *again), cuda=True, secret=True)

    def seed(self, domain: str, *numbers: int) -> bytes:
        """Derive 32 secret bytes for something of the batch in hand."""
        step = 0 if self._delivery is None else self._delivery.step
        return derive(self._feed.key, domain, step, *numbers, size=SEED_BYTES)

    def settle(self) -> None:
        """Put them back where they stood: the batch was stepped or given up."""
        outside, self._outside, self._delivery = self._outside, None, None
        if outside is not None:
            restore(outside)
