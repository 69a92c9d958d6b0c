"""PyTorch's generator, filled by hand: the layout of its state, and what protects against another one."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from anechoic.errors import GuaranteeError
from anechoic.noise import torch_arrays
from anechoic.noise.torch_arrays import check_generator_layout, pack_state, seeded_generator
from anechoic.strategies import Identity
from tests.noise.catalogue import STRATEGIES, emit, make_stream

WORDS = np.random.default_rng(3).integers(2**32, size=624, dtype=np.uint64)


@pytest.fixture
def unchecked():
    check_generator_layout.cache_clear()
    yield
    check_generator_layout.cache_clear()


def test_the_layout_of_this_torch_is_known(unchecked):
    check_generator_layout()
    assert pack_state(WORDS).nbytes == len(torch.Generator().get_state())


def test_the_generator_is_seeded_as_a_fresh_one_would_be():
    # torch's own seeding fills the same fields: a seed, 624 words, "left" 1, nothing cached
    own = torch.Generator().manual_seed(5489).get_state().numpy().view(torch_arrays._STATE)
    assert own["left"] == 1 and own["seeded"] == 1 and own["next"] == 0
    assert not own["double_is_cached"] and not own["float_is_cached"]
    reference = np.random.MT19937()
    reference._legacy_seeding(5489)
    np.testing.assert_array_equal(own["words"][0], reference.state["state"]["key"])


def test_every_word_of_the_state_is_used():
    # but for the lower 31 bits of word 0, which mt19937 does not have
    def draw(words):
        return torch.randn(700, generator=seeded_generator(words.astype("<u4").tobytes())).numpy()

    base = draw(WORDS)
    for k in range(624):
        changed = WORDS.copy()
        changed[k] ^= 1 << 31
        assert not np.array_equal(draw(changed), base)


def test_manual_seed_would_keep_only_32_bits():
    # why seeds never pass through it
    pair = [torch.randn(4, generator=torch.Generator().manual_seed(seed)) for seed in (7, 7 + 2**32)]
    assert torch.equal(*pair)


@pytest.mark.parametrize("field", ["next", "words", "cached_doubles"])
def test_another_layout_is_refused(field, unchecked, monkeypatch):
    # as a torch would see it in which two neighbouring fields have changed places
    fields = list(torch_arrays.FIELDS)
    i = [name for name, *_ in fields].index(field)
    fields[i - 1], fields[i] = fields[i], fields[i - 1]
    monkeypatch.setattr(torch_arrays, "_STATE", np.dtype(fields))
    with pytest.raises(GuaranteeError, match=r"layout unknown.*backend='numpy'"):
        make_stream(Identity(2), 3, "torch")
    make_stream(Identity(2), 3, "numpy")


@pytest.mark.parametrize("size", [5048, 5064])
def test_a_state_of_another_size_is_refused(size, unchecked, monkeypatch):
    def resized(words):
        return np.resize(pack_state(words), size)

    monkeypatch.setattr(torch_arrays, "pack_state", resized)
    with pytest.raises(GuaranteeError, match="layout unknown"):
        check_generator_layout()


def test_a_state_with_a_cached_number_is_refused(unchecked, monkeypatch):
    # the first number of every short row would be the same (normal_ caches doubles, whatever its dtype)
    def cached(words):
        state = pack_state(words).view(torch_arrays._STATE)
        state["double_is_cached"] = 1
        return state.view(np.uint8)

    monkeypatch.setattr(torch_arrays, "pack_state", cached)
    with pytest.raises(GuaranteeError, match="layout unknown"):
        check_generator_layout()


@pytest.mark.parametrize("change", ["half", "shifted", "zero"])
def test_a_generator_that_keeps_less_of_the_state_is_refused(change, unchecked, monkeypatch):
    def weaker(words):
        words = words.copy()
        if change == "half":
            words &= 0xFFFF
        elif change == "shifted":
            words = np.roll(words, 1)
        else:
            words[600:] = 0
        return pack_state(words)

    monkeypatch.setattr(torch_arrays, "pack_state", weaker)
    with pytest.raises(GuaranteeError, match="layout unknown"):
        check_generator_layout()


def test_the_check_runs_before_the_first_row_of_a_process():
    code = (
        "import numpy as np\n"
        "from anechoic.noise import NoiseStream, torch_arrays\n"
        "from anechoic.strategies import Identity\n"
        "NoiseStream(Identity(2), 3)\n"
        "assert torch_arrays.check_generator_layout.cache_info().currsize == 0\n"
        "NoiseStream(Identity(2), 3, backend='torch')\n"
        "assert torch_arrays.check_generator_layout.cache_info().currsize == 1\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", ["identity", "output", "banded-4-signed", "blt-4"])
def test_modes_of_the_caller_change_nothing(name):
    stream = make_stream(STRATEGIES[name], 33, "torch", precision="float32")
    expected, _ = emit(stream)
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16), torch.device("meta"):
            _, state = emit(stream, count=4)
            state = stream.restore(state.state_dict())
    finally:
        torch.set_float32_matmul_precision(before)
    rest, _ = emit(stream, state)  # states made in inference mode go on outside it
    np.testing.assert_array_equal(rest, expected[4:])
    row, _ = stream.next(stream.init())
    assert not row.is_inference() and not row.requires_grad


@pytest.mark.parametrize("name", ["identity", "output", "banded-4-signed", "blt-4", "restarted(dense)"])
def test_other_devices_take_the_same_steps(name):
    # meta tensors hold no data; that the steps run on them shows that all operations name their device
    stream = make_stream(STRATEGIES[name], 33, "torch", device="meta")
    state = stream.init()
    for _ in range(stream.n):
        row, state = stream.next(state)
        assert row.device.type == "meta"


def test_memory_starts_at_a_multiple_of_64_bytes():
    # so that vector kernels round alike after a restart of the process
    for backend in ("numpy", "torch"):
        for precision in ("float32", "float64"):
            arrays = make_stream(Identity(2), 3, backend, precision=precision).arrays
            for shape in ((1,), (3, 5), (2, 1000)):
                array = arrays.empty(*shape)
                address = array.ctypes.data if backend == "numpy" else array.data_ptr()
                assert address % 64 == 0
                assert tuple(array.shape) == shape
