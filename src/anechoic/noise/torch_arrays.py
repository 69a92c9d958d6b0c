"""PyTorch form of a stream's arrays; fresh rows by PyTorch's own mt19937, its whole state filled.

`torch.Generator.manual_seed` keeps 32 bits of a seed on the CPU, and the CUDA generator 64. So rows are
drawn on the CPU, by a generator whose 624 words come from SHAKE-256 through `set_state`, and moved to other
devices. PyTorch does not document the bytes of that state: their layout is checked before first use.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from anechoic._validate import Array
from anechoic.errors import GuaranteeError
from anechoic.noise.arrays import aligned_empty, checked_precision
from anechoic.noise.gaussian import in_blocks, seed_of

if TYPE_CHECKING:
    import torch

WORDS = 624
STATE_BLOCK = 2**20  # numbers of a row that are fed to the state at once

# at::CPUGeneratorImplState. "left" = 1 and "next" = 0 make the first draw start with a twist, as after
# seeding; the fields of cached normals stay zero, which marks them as absent.
FIELDS = [
    ("seed", "u8"),
    ("left", "i4"),
    ("seeded", "i4"),
    ("next", "u8"),
    ("words", "u8", (WORDS,)),
    ("cached_doubles", "f8", (3,)),
    ("double_is_cached", "i4"),
    ("padding", "i4"),
    ("cached_float", "f4"),
    ("float_is_cached", "i4"),
]
_STATE = np.dtype(FIELDS)


class TorchArrays:
    """PyTorch rows on any device."""

    backend = "torch"

    def __init__(self, dtype: Any, device: Any) -> None:
        import torch

        check_generator_layout()
        dtype = torch.float32 if dtype is None else dtype
        self.precision = checked_precision(dtype, str(dtype).removeprefix("torch."))
        self._dtype: torch.dtype = getattr(torch, self.precision)
        self._device = torch.empty(0, device="cpu" if device is None else device).device
        self._on_cpu = self._device.type == "cpu"

    def empty(self, *shape: int) -> torch.Tensor:
        import torch

        with torch.inference_mode(False):
            if self._on_cpu:
                return torch.from_numpy(aligned_empty(shape, self.precision))
            return torch.empty(shape, dtype=self._dtype, device=self._device)

    def check_row(self, row: Any, dimension: int) -> torch.Tensor:
        import torch

        if not isinstance(row, torch.Tensor) or tuple(row.shape) != (dimension,) or row.dtype != self._dtype:
            raise ValueError(f"out must be a tensor of shape ({dimension},) and type {self.precision}.")
        if row.device != self._device or not row.is_contiguous() or row.requires_grad or row.is_inference():
            raise ValueError(
                f"out must be contiguous, on {self._device}, without requires_grad, and made outside "
                "inference mode."
            )
        return row

    def fill_normal(self, row: torch.Tensor, scale: float, key: bytes, step: int, shard: int) -> None:
        self.fill_sum(row, np.array([scale]), key, step, shard)

    def fill_sum(self, row: torch.Tensor, weights: Array, key: bytes, step: int, shard: int) -> None:
        import torch

        target = row if self._on_cpu else torch.from_numpy(aligned_empty(tuple(row.shape), self.precision))
        bits = 8 * target.element_size()

        def draw(out: torch.Tensor, scale: float, j: int, block: int) -> None:
            generator = seeded_generator(seed_of(key, step - j, shard, block, bits=bits, size=4 * WORDS))
            out.normal_(0.0, scale, generator=generator)

        def fill(block: int, part: slice) -> None:
            draw(target[part], float(weights[0]), 0, block)
            others = np.flatnonzero(weights[1:]).tolist()
            if not others:
                return
            # added by NumPy: PyTorch's own sum would ask for all threads again in each of these
            here = target[part].numpy()
            other = aligned_empty(here.shape, self.precision)
            for j in others:
                draw(torch.from_numpy(other), abs(float(weights[j + 1])), j + 1, block)
                (np.add if weights[j + 1] > 0 else np.subtract)(here, other, out=here)

        with torch.inference_mode(False):
            in_blocks(fill, target.shape[0], torch.get_num_threads())
            if target is not row:
                row.copy_(target)

    def combine(self, weights: Array, rows: torch.Tensor, out: torch.Tensor) -> None:
        import torch

        with torch.inference_mode(False):
            torch.mv(rows.t(), self._vector(weights), out=out)

    def assign(self, rows: torch.Tensor, row: torch.Tensor) -> None:
        import torch

        with torch.inference_mode(False):
            rows.copy_(row)

    def feed_back(self, row: torch.Tensor, rows: torch.Tensor, weights: Array, decays: Array) -> None:
        import torch

        # not in blocks that fit the cache: a third faster on an idle machine, but many times slower on a busy
        # one, because every operation waits for all threads
        with torch.inference_mode(False):
            row.addmv_(rows.t(), self._vector(weights))
            torch.addcmul(row, rows, self._vector(decays)[:, None], out=rows)

    def feed_state(
        self, row: torch.Tensor, rows: torch.Tensor, weights: Array, transition: Array, entry: Array
    ) -> None:
        import torch

        matrix, column = self._vector(transition), self._vector(entry)[:, None]
        with torch.inference_mode(False):
            row.addmv_(rows.t(), self._vector(weights))
            for start in range(0, row.shape[0], STATE_BLOCK):  # so that the copy of the state stays small
                here, past = row[start : start + STATE_BLOCK], rows[:, start : start + STATE_BLOCK]
                past.copy_(torch.addcmul(matrix @ past, column, here))

    def export(self, rows: torch.Tensor, *, copy: bool) -> torch.Tensor:
        import torch

        with torch.inference_mode(False):
            plain = rows.detach().to("cpu")
            return plain.clone() if copy and self._on_cpu else plain

    def load(self, exported: Any, rows: torch.Tensor) -> None:
        import torch

        if not isinstance(exported, torch.Tensor):
            raise ValueError(f"rows is a {type(exported).__name__}, not a tensor.")
        if exported.dtype != self._dtype or exported.shape != rows.shape:
            raise ValueError(
                f"rows is {exported.dtype} of shape {tuple(exported.shape)}, not {self._dtype} of shape "
                f"{tuple(rows.shape)}."
            )
        with torch.inference_mode(False):
            rows.copy_(exported.detach())

    def _vector(self, values: Array) -> torch.Tensor:
        import torch

        return torch.from_numpy(values.astype(self.precision)).to(self._device)


def pack_state(words: NDArray[Any]) -> NDArray[np.uint8]:
    """State bytes of a CPU generator that holds the given 624 words and nothing else."""
    state = np.zeros(1, _STATE)
    state["left"] = 1
    state["seeded"] = 1
    state["words"] = words
    return state.view(np.uint8)


def seeded_generator(seed: bytes) -> torch.Generator:
    """A CPU generator whose whole mt19937 state is the given 2,496 bytes."""
    import torch

    generator = torch.Generator(device="cpu")
    generator.set_state(torch.from_numpy(pack_state(np.frombuffer(seed, dtype="<u4"))))
    return generator


@functools.cache
def check_generator_layout() -> None:
    """Check that a filled state means what `pack_state` says; once per process.

    Raw outputs must be those of NumPy's mt19937 with the same 624 words, well beyond the first 624. Normal
    numbers must follow from the words, and not from what the generator held before or cached.

    Raises:
        GuaranteeError: otherwise.
    """
    import torch

    def normals(generator: torch.Generator, count: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(count, dtype=dtype, device="cpu").normal_(generator=generator)

    # 1 is drawn by the scalar code, which caches a second; 33 by the vector code; 1500 needs further twists
    kinds = [(count, dtype) for count in (1, 33, 1500) for dtype in (torch.float32, torch.float64)]
    probes = np.random.Generator(np.random.Philox(0)).integers(2**32, size=(2, WORDS), dtype=np.uint64)
    used = torch.Generator(device="cpu")
    first_numbers: list[set[float]] = []
    try:
        for words in probes:
            for count, dtype in kinds[:2]:
                normals(used, count, dtype)
            packed = torch.from_numpy(pack_state(words))
            used.set_state(packed)
            raw = torch.empty(WORDS, dtype=torch.int64, device="cpu")
            kept = torch.equal(used.get_state(), packed)
            raw.random_(-(2**63), None, generator=used)
            if not (kept and np.array_equal(_halves(raw.numpy()), _reference(words))):
                raise RuntimeError("its outputs are not those of mt19937 with these words")
            first_numbers.append(set())
            for count, dtype in kinds:
                used.set_state(packed)
                drawn = normals(used, count, dtype)
                if not torch.equal(
                    drawn, normals(seeded_generator(words.astype("<u4").tobytes()), count, dtype)
                ):
                    raise RuntimeError("normal numbers depend on what it held before")
                first_numbers[-1].add(float(drawn[0]))
        if first_numbers[0] & first_numbers[1]:
            raise RuntimeError("the first normal number does not depend on the words")
    except (RuntimeError, TypeError) as error:
        raise GuaranteeError(
            f"torch {torch.__version__} keeps the state of its CPU generator in a layout unknown to this "
            f"version of anechoic ({error}), so noise cannot be seeded with the whole key. Use a tested "
            "version of torch (see constraints.txt), or backend='numpy'."
        ) from error


def _halves(values: NDArray[Any]) -> NDArray[Any]:
    """The 32-bit halves of 64-bit outputs, sorted: which of two draws becomes the upper one is no matter."""
    bits = values.view(np.uint64)
    return np.sort(np.stack([bits >> np.uint64(32), bits & np.uint64(0xFFFFFFFF)], axis=1), axis=1)


def _reference(words: NDArray[Any]) -> NDArray[Any]:
    """What NumPy's mt19937 draws from the same words, paired as `_halves`."""
    source = np.random.MT19937()
    source.state = {"bit_generator": "MT19937", "state": {"key": words.astype(np.uint32), "pos": WORDS}}
    return np.sort(source.random_raw(2 * WORDS).reshape(-1, 2), axis=1)
