"""What a CUDA device does with this library, in at most five minutes: python tools/gpu.py --out FOLDER

    make gpu-wheels                                              # where there is a network
    pip install --no-index --no-deps build/gpu-wheels/*.whl      # on the machine of the device
    PYTHONPATH=src python tools/gpu.py --out benchmarks/records  # from the root of the repository

That machine needs PyTorch 2.11 or newer, NumPy and SciPy. Each check is by itself: one that fails is written
down, and the exit status is 1. Gradients of a batch are held against single rows, the bits of the noise
against the CPU's, a step against Opacus's, the noise against a copy's bandwidth, two processes against each
other.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import anechoic
from anechoic.mechanism.mechanism import Mechanism
from anechoic.noise import NoiseStream
from anechoic.noise.grid import default_bits
from anechoic.sampling import FixedOrder
from anechoic.strategies import BLT, BandedToeplitz, Identity, Toeplitz
from anechoic.torch import PrivacyEngine
from anechoic.workloads import prefix_sum

ROWS, BATCH, STEPS = 256, 32, 8
MODES = ("rows", "rows+exact", "ghost", "vmap_loss")


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, 10))


def convolutions() -> nn.Module:
    return nn.Sequential(
        *(nn.Unflatten(1, (1, 28, 28)), nn.Conv2d(1, 16, 5, stride=2), nn.GroupNorm(4, 16), nn.ReLU()),
        *(nn.Conv2d(16, 32, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(800, 10)),
    )


def data(rows: int, device: str) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    return torch.randn(rows, 784, generator=g).to(device), torch.randint(10, (rows,), generator=g).to(device)


def private(make: Callable[[], nn.Module], mode: str, device: str, std: float, *, batch: int = BATCH) -> Any:
    """(model, optimizer, criterion, loader, plain model) of a run in a fixed order."""
    torch.manual_seed(0)
    plain = make().to(device)
    kind, _, exact = mode.partition("+")
    size = sum(p.numel() for p in plain.parameters())
    bits = default_bits(size) if exact else None
    sampling = FixedOrder(8 * batch, batch, steps=max(STEPS, 64))
    mechanism = Mechanism(Identity(sampling.steps), sampling, std, clip_norm=0.5, grid_bits=bits)
    criterion: Any = nn.CrossEntropyLoss()
    model, optimizer, *rest, loader = PrivacyEngine().make_private(
        module=plain,
        optimizer=torch.optim.SGD(plain.parameters(), lr=0.0),
        criterion=criterion,
        data_loader=DataLoader(TensorDataset(*data(8 * batch, device)), batch_size=batch),
        mechanism=mechanism,
        grad_sample_mode=kind,
    )
    return model, optimizer, rest[0] if rest else criterion, loader, plain


def clipped_by_loop(plain: nn.Module, x: Tensor, y: Tensor, clip: float) -> Tensor:
    """Mean of the clipped gradients of single rows, each by plain autograd."""
    total, parameters = torch.zeros((), dtype=torch.float64), list(plain.parameters())
    for i in range(len(x)):
        loss = nn.functional.cross_entropy(plain(x[i : i + 1]), y[i : i + 1])
        flat = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, parameters)]).double().cpu()
        total = total + flat * min(1.0, clip / float(flat.norm()))
    return total / len(x)


def gradients(make: Callable[[], nn.Module], mode: str, device: str) -> dict[str, Any]:
    """Releases next to without noise, against a loop over rows on the same device."""
    model, optimizer, criterion, loader, plain = private(make, mode, device, 1e-6)
    copy = make().to(device)
    copy.load_state_dict(plain.state_dict())
    worst = 0.0
    for x, y in loader:
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()
        found = torch.cat([p.grad.reshape(-1) for p in plain.parameters()]).double().cpu()
        expected = clipped_by_loop(copy, x.as_subclass(Tensor), y.as_subclass(Tensor), 0.5)
        worst = max(worst, float((found - expected).norm() / expected.norm()))
    need(worst < 2e-3, f"gradients differ by {worst:.2g} from those of single rows")
    return {"largest_difference": worst, "releases": len(loader)}


def noise_bits(device: str) -> dict[str, Any]:
    """Rows drawn on the device are those of the CPU, bit for bit; saved states go on the same."""
    strategies = {
        "identity": Identity(12),
        "banded": BandedToeplitz(12, Toeplitz.square_root(prefix_sum(8)).coefficients),
        "blt": BLT(12, [0.9, 0.5], [0.3, 0.2]),
    }
    compared = 0
    for name, strategy in strategies.items():
        for dtype in (torch.float32, torch.float64):
            for cipher in ("AES-256", "ChaCha20"):
                rows = []
                for place in ("cpu", device):
                    given: Any = {"key": bytes(32), "dtype": dtype, "device": place, "cipher": cipher}
                    stream = NoiseStream(strategy, 10_007, backend="torch", **given)
                    state, found = stream.init(), []
                    for t in range(stream.n):
                        row, state = stream.next(state)
                        found.append(row.cpu().numpy().copy())
                        state = stream.restore(state.state_dict()) if t == 5 else state
                    rows.append(np.array(found))
                need(np.array_equal(*rows), f"{name}, {dtype}, {cipher}: the device's rows are not the CPU's")
                compared += rows[0].size
    return {"numbers_compared": compared}


def clock(device: str, work: Callable[[], Any], repeats: int) -> float:
    """Median seconds, with the device's queue empty before and after."""
    found = []
    for _ in range(repeats + 3):
        wait(device)
        begun = time.perf_counter()
        work()
        wait(device)
        found.append(time.perf_counter() - begun)
    return statistics.median(found[3:])


def wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def step_time(mode: str, device: str, batch: int) -> dict[str, Any]:
    """Seconds of a step, beside Opacus's with independent noise and the same batches."""
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    model, optimizer, criterion, loader, _ = private(convolutions, mode, device, 1.0, batch=batch)
    other = GradSampleModule(convolutions().to(device))
    theirs = DPOptimizer(
        torch.optim.SGD(other.parameters(), lr=0.0),
        noise_multiplier=1.0,
        max_grad_norm=0.5,
        expected_batch_size=batch,
    )
    batches = (pair for _ in range(8) for pair in loader)
    fixed = data(batch, device)

    def ours() -> None:
        x, y = next(batches)
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()

    def opacus() -> None:
        theirs.zero_grad()
        nn.functional.cross_entropy(other(fixed[0]), fixed[1]).backward()
        theirs.step()

    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats()
    seconds = {"ours": clock(device, ours, 20), "opacus": clock(device, opacus, 20)}
    peak = torch.cuda.max_memory_allocated() if device.startswith("cuda") else None
    return {**seconds, "ratio": seconds["ours"] / seconds["opacus"], "peak_bytes": peak, "batch": batch}


def noise_time(device: str, entries: int) -> dict[str, Any]:
    """Seconds of a noise row of 8 bands, over a copy of as much memory."""
    bands = Toeplitz.square_root(prefix_sum(8)).coefficients
    strategy = BandedToeplitz(64, bands)
    given: Any = {"key": bytes(32), "device": device, "cipher": "ChaCha20"}
    stream = NoiseStream(strategy, entries, backend="torch", **given)
    state = [stream.init()]
    row: list[Any] = [None]

    def noise() -> None:
        row[0], state[0] = stream.next(state[0], out=row[0])

    source = torch.zeros(entries, device=device)
    target = torch.empty_like(source)
    seconds = {"row": clock(device, noise, 12), "copy": clock(device, lambda: target.copy_(source), 12)}
    return {**seconds, "copies": seconds["row"] / seconds["copy"], "entries": entries}


def _rank(rank: int, backend: str, device: str, port: int, answers: Any) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    try:
        torch.distributed.init_process_group(backend, rank=rank, world_size=2)
        torch.manual_seed(0)
        model = perceptron().to(device)
        keys = {"noise_key": bytes([1] * 32), "sampling_key": bytes([2] * 32)}
        module, optimizer, loader = PrivacyEngine(chunk_rows=8, **keys).make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            data_loader=DataLoader(TensorDataset(*data(ROWS, device)), batch_size=BATCH),
            mechanism=Mechanism(Identity(STEPS), FixedOrder(ROWS, BATCH, steps=STEPS), 1.0),
        )
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(x), y).backward()
            optimizer.step()
        answers.put((rank, float(sum(p.detach().double().sum() for p in model.parameters())), ""))
    except Exception:  # another process reads it
        answers.put((rank, 0.0, traceback.format_exc()))


def two_ranks(backend: str, device: str) -> dict[str, Any]:
    """Two processes of one run have the same weights in the end."""
    context = multiprocessing.get_context("spawn")
    answers, port = context.Queue(), 20_000 + os.getpid() % 20_000
    made = [context.Process(target=_rank, args=(r, backend, device, port, answers)) for r in range(2)]
    for process in made:
        process.start()
    found = sorted(answers.get(timeout=100) for _ in made)
    for process in made:
        process.join(10)
    need(not (found[0][2] or found[1][2]), found[0][2] or found[1][2])
    need(found[0][1] == found[1][1], f"the ranks' weights differ: {found}")
    return {"sum_of_weights": found[0][1]}


def need(holds: bool, what: str) -> None:
    if not holds:
        raise RuntimeError(what)


def checks(device: str, quick: bool) -> dict[str, Callable[[], dict[str, Any]]]:
    """What is tried, by name."""
    found: dict[str, Callable[[], dict[str, Any]]] = {}
    for make in (perceptron, convolutions):
        for mode in MODES:
            name = f"gradients, {make.__name__}, {mode}"
            found[name] = lambda make=make, mode=mode: gradients(make, mode, device)
    found["bits of the noise"] = lambda: noise_bits(device)
    for mode in MODES[:1] if quick else MODES[:3]:
        for batch in (32,) if quick else (32, 256):
            found[f"step, {mode}, {batch}"] = lambda mode=mode, batch=batch: step_time(mode, device, batch)
    for entries in (10**5,) if quick else (10**6, 10**8):
        found[f"noise, {entries:,} entries"] = lambda entries=entries: noise_time(device, entries)
    found["two ranks, gloo"] = lambda: two_ranks("gloo", device)
    if device.startswith("cuda") and torch.cuda.device_count() > 1:
        found["two ranks, nccl"] = lambda: two_ranks("nccl", device)
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1, or cpu")
    parser.add_argument("--out", type=Path, default=Path("build"), help="folder of gpu-DEVICE.json")
    parser.add_argument("--quick", action="store_true", help="small sizes")
    options = parser.parse_args(arguments)
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        print("no CUDA device here: give --device cpu to try the script itself", file=sys.stderr)
        return 2
    cuda = options.device.startswith("cuda")
    name = torch.cuda.get_device_name(options.device) if cuda else platform.processor() or platform.machine()
    versions = {"anechoic": anechoic.__version__, "torch": torch.__version__, "cuda": torch.version.cuda}
    record: dict[str, Any] = {"device": name, "date": time.strftime("%Y-%m-%d"), **versions, "checks": {}}
    for what, check in checks(options.device, options.quick).items():
        begun = time.perf_counter()
        try:
            found = {"ok": True, **check()}
        except Exception as error:  # each by itself: the others still tell something
            found = {"ok": False, "error": f"{type(error).__name__}: {error}"[:2000]}
        found["seconds"] = time.perf_counter() - begun
        record["checks"][what] = found
        shown = ", ".join(f"{k} {v:.4g}" for k, v in found.items() if isinstance(v, float) and k != "seconds")
        print(f"{'ok ' if found['ok'] else 'NO '} {what:36} {found.get('error', shown)}", flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / f"gpu-{'-'.join(name.lower().split())}.json"
    path.write_text(json.dumps(record, indent=1) + "\n")
    print(f"Saved: {path}")
    return int(not all(found["ok"] for found in record["checks"].values()))


if __name__ == "__main__":
    sys.exit(main())
