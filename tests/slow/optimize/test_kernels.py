"""How far losses differ between kernels of OpenBLAS: see `SAME`."""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

KERNELS = ["Haswell", "Sandybridge", "Nehalem"]  # no other is on every machine that tests run on
if "avx512f" in (Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""):
    KERNELS.append("SkylakeX")
# Largest relative difference of the same optimiser's losses, by the first word of a name. Smooth losses are
# found to their minimum; the largest error is searched by multipliers (1.5e-6 seen), dense to its gap.
SAME = {"loose": 1e-5, "dense": 1e-4, "normalized": 1e-8}
CHILD = """
import json
from anechoic import optimize, workloads
from anechoic.participation import Cyclic, MinSep, Single

found = {}
for schema in (Single(), Cyclic(16), MinSep(16, 3)):
    workload = workloads.prefix_sum(64)
    for kind in ("rms", "max"):
        how = {"participation": schema, "loss": kind}
        key = f"{schema!r} {kind}"
        found[f"toeplitz {key}"] = optimize.toeplitz(workload, **how).loss
        found[f"banded_toeplitz {key}"] = optimize.banded_toeplitz(workload, bands=4, **how).loss
        found[f"blt {key}"] = optimize.blt(workload, buffers=2, **how).loss
        found[f"banded_inverse {key}"] = optimize.banded_inverse(workload, bands=3, **how).loss
    found[f"banded {schema!r} rms"] = optimize.banded(workload, bands=4, participation=schema).loss
    found[f"normalized {schema!r} rms"] = optimize.column_normalized(
        workload, bands=4, participation=schema
    ).loss
    found[f"dense {schema!r} max"] = optimize.dense(workload, participation=schema, loss="max").loss
    found[f"loose banded {schema!r} max"] = optimize.banded(
        workload, bands=4, participation=schema, loss="max"
    ).loss
for workload in (workloads.momentum(64, 0.9), workloads.nesterov(64, 0.9)):
    for kind in ("rms", "max"):
        key = f"{workload!r} {kind}"
        found[f"banded_toeplitz {key}"] = optimize.banded_toeplitz(workload, bands=4, loss=kind).loss
        found[f"blt {key}"] = optimize.blt(workload, buffers=2, loss=kind).loss
        found[f"loose banded {key}"] = optimize.banded(workload, bands=4, loss=kind).loss
        found[f"loose toeplitz {key}"] = optimize.toeplitz(workload, loss=kind).loss
print(json.dumps(found))
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="kernels of other processors")
def test_digits_on_every_kernel():
    found = []
    for kernel in KERNELS:
        environment = {**os.environ, "OPENBLAS_CORETYPE": kernel, "OPENBLAS_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, "-c", CHILD],
            cwd=Path(__file__).parents[3],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        found.append(json.loads(done.stdout))
    for name, value in found[0].items():
        within = SAME.get(name.split()[0], 1e-9)
        for other in found[1:]:
            assert other[name] == pytest.approx(value, rel=within), name
