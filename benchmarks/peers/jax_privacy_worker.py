"""JAX Privacy's optimisers behind a pipe: one JSON task a line in, one JSON result a line out.

Runs in an environment of its own (`make bench-peer` makes it). A result carries the wall-clock seconds of the
call alone, compilation included since every call compiles anew, and the strategy as arrays in an .npz file,
so that its loss can be computed by the same code as ours.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

jax.config.update("jax_enable_x64", True)

from jax_privacy.matrix_factorization import banded, buffered_toeplitz, dense, toeplitz  # noqa: E402

Arrays = dict[str, Any]


def banded_toeplitz(n: int, bands: int) -> Arrays:
    return {"coefficients": toeplitz.optimize_banded_toeplitz(n, bands)}


def blt(n: int, separation: int, count: int, kind: str) -> Arrays:
    found = buffered_toeplitz.optimize(
        n=n, min_sep=separation, max_participations=count, error="max" if kind == "max" else "mean"
    )
    return {"scale": found.output_scale, "decay": found.buf_decay}


def dense_rms(n: int, epochs: int = 1) -> Arrays:
    return {"matrix": dense.optimize(n, epochs=epochs)}


def banded_free(n: int, bands: int) -> Arrays:
    found = banded.optimize(n, bands=bands)
    return {"matrix": found.materialize()}


CALLS: dict[str, Callable[..., Arrays]] = {
    "banded_toeplitz": banded_toeplitz,
    "blt": blt,
    "dense": dense_rms,
    "banded": banded_free,
}


def main() -> None:
    for line in sys.stdin:
        task = json.loads(line)
        started = time.perf_counter()
        found = jax.block_until_ready(CALLS[task["call"]](**task["arguments"]))
        seconds = time.perf_counter() - started
        np.savez(task["file"], **{name: np.asarray(array) for name, array in found.items()})
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps({"seconds": seconds, "peak_mib": peak}), flush=True)


if __name__ == "__main__":
    main()
