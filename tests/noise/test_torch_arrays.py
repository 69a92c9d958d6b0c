"""PyTorch rows: modes of the caller, other devices, alignment."""

import numpy as np
import pytest
import torch

from anechoic.strategies import Identity
from tests.noise.streams import emit, make_stream
from tests.zoo import STRATEGIES


@pytest.mark.parametrize("name", ["identity", "output", "banded-mixed", "blt-4"])
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


def test_memory_starts_at_a_multiple_of_64_bytes():
    for backend in ("numpy", "torch"):
        for precision in ("float32", "float64"):
            arrays = make_stream(Identity(2), 3, backend, precision=precision).arrays
            for shape in ((1,), (3, 5), (2, 1000)):
                array = arrays.empty(*shape)
                address = array.ctypes.data if isinstance(array, np.ndarray) else array.data_ptr()
                assert address % 64 == 0
                assert tuple(array.shape) == shape
