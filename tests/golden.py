"""Digests of what must be the same on every processor: noise, releases of streams, sums, fingerprints.

`python -m tests.golden` prints them as JSON, after what NumPy, OpenBLAS and torch say they use. Strategies
and noise are given, not optimised: what an optimiser finds may differ in the last digits from processor to
processor, and so may the mechanism that is made of it.
"""

import contextlib
import hashlib
import io
import json
import re
from unittest import mock

import numpy as np
import scipy.linalg
import threadpoolctl

import anechoic as an
from anechoic import federated, streaming
from anechoic.noise import NoiseStream
from anechoic.noise.device_rows import fill_on_device
from anechoic.noise.gaussian import CHACHA, FreshRow
from anechoic.participation import Single
from anechoic.runs import digests as of_runs
from anechoic.sampling import External, Poisson
from tests.federated.small import KEY, run_round, small_model
from tests.zoo import STRATEGIES

# One of each kind of stream.
NAMES = (
    *("identity", "output", "toeplitz-root", "banded-mixed", "inverse-mixed", "blt-4"),
    *("recurrent", "tree", "normalised(tree)", "restarted(dense)"),
)
BACKENDS = ("numpy", "torch")


def uses():
    """Instructions in use, after a product: a kernel that the processor lacks ends the process here."""
    import torch

    a = np.random.default_rng(0).random((64, 64))
    scipy.linalg.cholesky(a @ a.T + np.eye(64))
    with contextlib.redirect_stdout(io.StringIO()) as told:
        np.show_runtime()
    found = re.search(r"'found': \[(.*?)\]", told.getvalue(), re.DOTALL)
    kernels = [one for one in threadpoolctl.threadpool_info() if one["internal_api"] == "openblas"]
    return {
        "numpy": re.findall(r"'(\w+)'", found[1]) if found else [],
        "openblas": sorted({one["architecture"].lower() for one in kernels}),
        "torch": torch.backends.cpu.get_cpu_capability(),
    }


def digest(*parts):
    """Of arrays and bytes, with their kinds."""
    found = hashlib.sha256()
    for part in parts:
        if not isinstance(part, bytes):
            part = np.asarray(part)
            found.update(repr((part.dtype.str, part.shape)).encode())
            part = part.tobytes()
        found.update(part)
    return found.hexdigest()[:16]


def rows(stream):
    state, found = stream.init(), []
    for _ in range(stream.n):
        row, state = stream.next(state)
        found.append(np.asarray(row).copy())
    return found


def noise():
    import torch

    for name in NAMES:
        strategy = STRATEGIES[name]
        for backend, module in zip(BACKENDS, (np, torch), strict=True):
            for precision in ("float32", "float64"):
                dtype = getattr(module, precision)
                made = NoiseStream(strategy, 1001, std=1.7, backend=backend, dtype=dtype, key=KEY)
                yield f"noise {name} {backend} {precision}", digest(*rows(made))
        grid = NoiseStream(strategy, 200, std=3.0, grid=2.0**-30, key=KEY)
        yield f"noise {name} grid", digest(*rows(grid))
        for backend in BACKENDS:
            options = {"backend": backend, "cipher": CHACHA, "key": KEY}
            yield f"noise {name} {backend} ChaCha20", digest(*rows(NoiseStream(strategy, 1001, **options)))


def device():
    """The rows of a device, made by torch's operators on the CPU."""
    import torch

    for precision in (torch.float32, torch.float64):
        row = torch.empty(70_001, dtype=precision)
        fill_on_device(FreshRow(KEY, 3, CHACHA), row, 5, 1.7)
        yield f"row of a device {precision}", digest(row.numpy())


def mechanism(strategy, unit=None, clients=1):
    sampling = External(Single(), clients, steps=strategy.n)
    named = {} if unit is None else {"unit": unit}
    return an.Mechanism(strategy, sampling, 3.0, delta=1e-6, grid_bits=24, **named)


def streams():
    """Sums, a mean, a distribution and centres of one release each, over records with many digits."""
    rng = np.random.default_rng(11)
    vectors = rng.normal(0.2, 0.7, (300, 2))
    statistics = {
        "count": (streaming.Count(), np.zeros(300)),
        "sum": (streaming.Sum(1.5, 2), vectors),
        "mean": (streaming.Mean(-1, 2), vectors[:, 0]),
        "distribution": (streaming.Distribution([0, 0.3, 0.6, 0.9]), vectors[:, 0]),
    }
    for name, (statistic, batch) in statistics.items():
        made = mechanism(STRATEGIES["banded-mixed"])
        stream = streaming.Stream({"it": statistic}, mechanism=made, key=KEY)
        released = stream.steps([batch[step::6] for step in range(6)])
        yield f"stream {name}", digest(*(release["it"].raw for release in released))
    yield "decoder of 64 buckets", digest(streaming.Distribution(range(65)).decoder)


def rounds():
    """Totals of nine rounds, and the model after them."""
    strategy = an.strategies.BandedToeplitz(9, [1.0, 0.5, 0.25])
    policy = federated.MinSeparation(3, 3)
    made = an.Mechanism(
        strategy,
        External(policy.participation, 3, steps=9),
        2.0,
        clip_norm=0.5,
        unit="client",
        grid_bits=24,
        delta=1e-6,
    )
    server = federated.Server(
        small_model(), mechanism=made, policy=policy, clients_per_round=3, exclude=["seen"], key=KEY
    )
    for _ in range(9):
        run_round(server, [str(client) for client in range(40)])
    yield "federated model", digest(*server.model.values())


def fingerprints():
    for name in NAMES:
        strategy = STRATEGIES[name]
        yield f"fingerprint {name}", mechanism(strategy).fingerprint
        yield f"file {name}", digest(mechanism(strategy).to_json().encode())
    one = STRATEGIES["identity"]
    sampled = an.Mechanism(one, Poisson(1000, 100, one.n), 2.0, delta=1e-6)
    yield "fingerprint sampled", sampled.fingerprint
    made = an.calibrate(one, sampling=sampled.sampling, epsilon=2.0, delta=1e-6)
    yield "fingerprint calibrated", made.fingerprint


def digests():
    # streams and servers draw their noise anew for every object, but for this
    with mock.patch.object(of_runs, "new_salt", bytes):
        return _digests()


def _digests():
    return {name: value for part in (noise, device, streams, rounds, fingerprints) for name, value in part()}


if __name__ == "__main__":
    print(json.dumps({"uses": uses(), "digests": digests()}))
