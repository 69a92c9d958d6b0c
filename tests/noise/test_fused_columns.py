"""Kernels of Triton, run by its interpreter on the CPU: the bits of single operations and of NumPy."""

import os
import subprocess
import sys

os.environ.setdefault("TRITON_INTERPRET", "1")  # it is read when Triton is imported

import pytest

pytest.importorskip("triton")

import numpy as np
import torch

from anechoic.noise import fused_columns, torch_arrays
from anechoic.noise.fused_columns import FusedColumns, columns_for, fused_is_plain, gives_plain_bits
from anechoic.noise.gaussian import CHACHA
from tests.noise.streams import emit, make_stream
from tests.zoo import STRATEGIES

CPU = torch.device("cpu")
#: Draws alone, sums of one run and more, sums made ahead, what is fed back, and what no kernel is for.
KINDS = [
    *("identity", "banded-mixed", "toeplitz-root", "inverse-mixed", "blt-4", "recurrent", "smooth", "tree"),
    *("normalised(restarted(blt-4))", "restarted(normalised(banded-2))"),
]


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_kernels_give_the_bits_of_single_operations(precision):
    assert gives_plain_bits(CPU, precision, 1500)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.slow
def test_streams_by_kernels_are_those_of_numpy(name, monkeypatch):
    options = {"precision": "float32", "cipher": CHACHA, "std": 0.7, "offset": 13, "length": 1000}
    steps = 10 if name == "toeplitz-root" else 5
    expected, ended = emit(make_stream(STRATEGIES[name], 2000, "numpy", **options), count=steps)
    stream = make_stream(STRATEGIES[name], 2000, "torch", **options)
    launched, launch = [], FusedColumns._launch

    def watched(self, kernel, *given, **more):
        launched.append(kernel)
        launch(self, kernel, *given, **more)

    monkeypatch.setattr(FusedColumns, "_launch", watched)
    monkeypatch.setattr(torch_arrays, "columns_for", FusedColumns)
    stream.arrays._on_cpu = False
    found, state = emit(stream, count=steps)
    assert found.tobytes() == expected.tobytes()
    assert np.asarray(state.state_dict()["rows"]).tobytes() == ended.state_dict()["rows"].tobytes()
    assert len(launched) == steps
    if name in ("blt-4", "banded-mixed", "toeplitz-root"):
        assert set(launched) == {"drawn", "fed" if name == "blt-4" else "summed"}
        assert launched.count("drawn") == 1  # in the first step there is no memory yet


def test_a_kernel_that_rounds_otherwise_is_noticed(monkeypatch):
    launch = FusedColumns._launch

    def off(self, name, out, *given, **more):
        launch(self, name, out, *given, **more)
        out[17] *= 1 + 2.0**-23

    monkeypatch.setattr(FusedColumns, "_launch", off)
    assert not gives_plain_bits(CPU, "float32", 900)


def test_where_kernels_do_not_run_single_operations_do(caplog):
    assert not fused_is_plain(CPU, "float32")
    stream = make_stream(STRATEGIES["identity"], 9, "torch", precision="float32", cipher=CHACHA)
    row = torch.empty(9)
    fresh = fused_columns.FreshRows(stream._keys, 0, 0)
    assert type(columns_for(torch.empty(0, 9), row, fresh, "float32")) is fused_columns.DeviceColumns
    if not torch.cuda.is_available():
        assert not fused_is_plain.__wrapped__(torch.device("cuda"), "float32")
        assert "no fused kernels of noise on cuda" in caplog.text


COMPILED = """
import re
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from anechoic.noise.fused_kernels import BLOCKS, WARPS, kernel
types = {"numbers": "*i64", "factors": "*fp64", "table": "*fp64", "counts": "*i64"}
given = {"ROWS": 4, "COPIED": True, "BLOCKS": BLOCKS}
for name in ("drawn", "fed", "summed"):
    for precision in ("fp32", "fp64"):
        made = kernel(name)
        kinds = {n: "constexpr" if n in given else types.get(n, "*" + precision) for n in made.arg_names}
        source = ASTSource(made, signature=kinds, constexprs={n: given[n] for n in kinds if n in given})
        options = {"num_warps": WARPS, "enable_fp_fusion": False}
        code = compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"]
        found = set(re.findall(r"\\b((?:fma|mad|mul|add)\\.[a-z0-9.]*f(?:32|64))", code))
        assert found and all(re.fullmatch(r"(mul|add)\\.rn\\.f(32|64)", one) for one in found), (name, found)
"""


@pytest.mark.slow
def test_compiled_kernels_round_every_product_and_sum_by_itself():
    """For a GPU that is not here: what the assembler gets has no fused operation, and may not fuse any."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", COMPILED], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
