"""Cost of a training step with correlated noise, against the same step with Opacus's independent noise.

    python benchmarks/training_step.py [--json PATH] [--batch-size 256] [--bands 32] [--repeats 15]
        [--modes rows rows+exact ghost] [--networks small large]

Both train the same convolutional network, of 3,118 and of 1,060,576 parameters, on the same batches in one
process, by turns, so that a noisy machine disturbs both: forward pass, backward pass with per-example
gradients, clipping, noise, update. "rows" is the default, and "rows+exact" has exact sums; Opacus's step is
that of its hooks, and for "ghost" of its ghost clipping. Every safeguard of the default is on, and a journal;
what each takes is measured in the same steps, by timers around its functions. The stream's buffer is full
from the start. Processor time is what other work on the machine disturbs least. Delivery of the batch is
timed on its own.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import platform
import statistics
import sys
import tempfile
import time
import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from opacus import GradSampleModule
from opacus.grad_sample import GradSampleModuleFastGradientClipping
from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from anechoic.mechanism.mechanism import Mechanism
from anechoic.noise.grid import default_bits
from anechoic.sampling import FixedOrder
from anechoic.strategies import BandedToeplitz, Toeplitz
from anechoic.torch import PrivacyEngine, noise_adder
from anechoic.torch.randomness.modes import paused
from anechoic.workloads import prefix_sum

#: Of the ratio of processor times, by the project's own rule.
TARGETS = {"rows": 1.3, "rows+exact": 1.4, "ghost": 1.1}
NOISE_STD = 1.0


def network() -> nn.Module:
    """A small CNN for 28 x 28 images with 1,060,576 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, stride=2),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(2304, 450),
        nn.ReLU(),
        nn.Linear(450, 10),
    )


def small_network() -> nn.Module:
    """A CNN for 28 x 28 images with 3,118 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, stride=2),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(3),
        nn.Flatten(),
        nn.Linear(144, 12),
        nn.Linear(12, 10),
    )


NETWORKS = {"small": small_network, "large": network}


class Shares:
    """Processor time of the safeguards: timers around their functions, of which the outermost counts.

    Args:
        optimizer: ours.
    """

    def __init__(self, optimizer: Any) -> None:
        self.seconds: dict[str, float] = {}
        self._inside = False
        source = optimizer.source
        for title, owner, names in (
            ("what must be as it was", optimizer.guard, ("check", "released")),
            ("journal", optimizer.noise_adder.journal, ("record",)),
            ("journal", noise_adder, ("digest",)),
            ("rows by themselves", source, ("_alone",)),
            ("rows by themselves", getattr(source, "single", None), ("rows", "row", "compare")),
            ("rules of layers against autograd", source, ("_compare",)),
            ("random numbers of the step", optimizer._surroundings, ("deliver", "take", "settle")),
        ):
            for name in names:
                if callable(getattr(owner, name, None)):
                    setattr(owner, name, self._timed(title, getattr(owner, name)))

    def _timed(self, title: str, function: Any) -> Any:
        self.seconds.setdefault(title, 0.0)

        def timed(*arguments: Any, **keywords: Any) -> Any:
            if self._inside:
                return function(*arguments, **keywords)
            self._inside, begun = True, time.process_time()
            try:
                return function(*arguments, **keywords)
            finally:
                self.seconds[title] += time.process_time() - begun
                self._inside = False

        return timed


def fill(optimizer: Any, loader: Any, bands: int) -> None:
    """Make `bands` releases without a gradient, after which the stream's buffer is full."""
    optimizer.source.sums = lambda _: optimizer.source.clipping.nothing(optimizer.params)
    while optimizer.ledger.releases < bands:
        for _ in loader:
            optimizer.step()
            if optimizer.ledger.releases == bands:
                break
    del optimizer.source.sums


def opacus(model: nn.Module, batch_size: int, mode: str) -> tuple[Any, Any, Any]:
    """Opacus's module, optimizer and criterion for a mode."""
    ghost = mode == "ghost"
    module: Any = GradSampleModuleFastGradientClipping(model, max_grad_norm=1.0) if ghost else None
    module = module or GradSampleModule(model)
    optimizer = (DPOptimizerFastGradientClipping if ghost else DPOptimizer)(
        torch.optim.SGD(model.parameters(), lr=0.01),
        noise_multiplier=NOISE_STD,
        max_grad_norm=1.0,
        expected_batch_size=batch_size,
    )
    criterion: Any = nn.CrossEntropyLoss()
    return module, optimizer, DPLossFastGradientClipping(module, optimizer, criterion) if ghost else criterion


def measure(
    batch_size: int, bands: int, repeats: int, mode: str, folder: str, size: str = "large"
) -> dict[str, Any]:
    """Seconds of single steps, by turns."""
    kind, _, exact = mode.partition("+")
    steps = bands + repeats + 1
    features = torch.randn(4 * batch_size, 1, 28, 28)
    dataset = TensorDataset(features, torch.randint(10, (4 * batch_size,)))
    ours, theirs = NETWORKS[size](), NETWORKS[size]()
    theirs.load_state_dict(copy.deepcopy(ours.state_dict()))
    strategy = BandedToeplitz(steps, Toeplitz.square_root(prefix_sum(bands)).coefficients)
    sampling = FixedOrder(len(dataset), batch_size, steps=steps)
    grid_bits = default_bits(sum(p.numel() for p in ours.parameters())) if exact else None
    mechanism = Mechanism(strategy, sampling, NOISE_STD, grid_bits=grid_bits)
    made = PrivacyEngine(journal=Path(folder) / f"{mode}-{size}.journal").make_private(
        module=ours,
        optimizer=torch.optim.SGD(ours.parameters(), lr=0.01),
        data_loader=DataLoader(dataset, batch_size=batch_size, shuffle=True),
        mechanism=mechanism,
        grad_sample_mode=kind,
        exact_sums=bool(exact),
    )
    module, optimizer, loader = made[0], made[1], made[-1]
    criterion = made[2] if kind == "ghost" else nn.CrossEntropyLoss()
    other, independent, their_criterion = opacus(theirs, batch_size, kind)
    fill(optimizer, loader, bands)
    shares = Shares(optimizer)
    seconds: dict[str, list[float]] = {"correlated": [], "independent": [], "delivery": []}
    processor: dict[str, list[float]] = {"correlated": [], "independent": []}
    made, first = 0, {}
    while made <= repeats:
        start = time.perf_counter()
        for x, y in loader:
            seconds["delivery"].append(time.perf_counter() - start)
            turns = [
                ("correlated", module, optimizer, criterion),
                ("independent", other, independent, their_criterion),
            ]
            # the first of a pair finds other memory than the second: change places
            for name, model, private, judge in turns if made % 2 else reversed(turns):
                # with a batch of ours in hand, every operation is looked at: not theirs
                with paused() if model is other else nullcontext():
                    begun, used = time.perf_counter(), time.process_time()
                    private.zero_grad()
                    judge(model(x), y).backward()
                    private.step()
                    seconds[name].append(time.perf_counter() - begun)
                    processor[name].append(time.process_time() - used)
            made += 1
            first = first or dict(shares.seconds)  # the first step checks more than the others
            start = time.perf_counter()
            if made > repeats:
                break
    timed = {name: values[1:] for name, values in seconds.items()}  # the first warms up
    middle = {name: statistics.median(values) for name, values in timed.items()}
    used_middle = {name: statistics.median(values[1:]) for name, values in processor.items()}
    return {
        "parameters": sum(p.numel() for p in ours.parameters()),
        "mode": mode,
        "batch_size": batch_size,
        "bands": bands,
        "repeats": repeats,
        "seconds": middle,
        "processor_seconds": used_middle,
        "ratio": middle["correlated"] / middle["independent"],
        "processor_ratio": used_middle["correlated"] / used_middle["independent"],
        "shares": {
            title: (spent - first[title]) / sum(processor["correlated"][1:])
            for title, spent in shares.seconds.items()
        },
        "spread": {name: [min(values), max(values)] for name, values in timed.items()},
    }


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Measure, print, write JSON where asked to; returns what the JSON holds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--bands", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=15, help="timed steps of each")
    parser.add_argument("--networks", choices=NETWORKS, nargs="+", default=list(NETWORKS))
    parser.add_argument("--json", help="file for the figures")
    parser.add_argument("--modes", choices=TARGETS, nargs="+", default=list(TARGETS))
    options = parser.parse_args(arguments)
    warnings.filterwarnings("ignore", message="Full backward hook is firing")

    about = {
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "torch_threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
    }
    with tempfile.TemporaryDirectory() as folder:
        results = [
            measure(options.batch_size, options.bands, options.repeats, mode, folder, size)
            for size in options.networks
            for mode in options.modes
        ]
    print(
        f"Training step, batch {options.batch_size},"
        f" {options.bands} bands, torch {about['torch']}, {about['torch_threads']} threads; medians of"
        f" {options.repeats}; processor time in ms"
    )
    for result in results:
        used, mode = result["processor_seconds"], result["mode"]
        print(
            f"  {result['parameters']:9,} {mode:10}"
            f" Opacus {used['independent'] * 1e3:8.1f}   anechoic {used['correlated'] * 1e3:8.1f}"
            f"   ratio {result['processor_ratio']:6.3f} (wall {result['ratio']:6.3f}, target"
            f" {TARGETS[mode]:.2f}); delivery {result['seconds']['delivery'] * 1e3:.1f} ms"
        )
        for title, share in result["shares"].items():
            print(f"      {title:34} {100 * share:6.2f} %")
    figures = {"benchmark": "training_step", "targets": TARGETS, "setting": about, "results": results}
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(figures, file, indent=2)
    return figures


if __name__ == "__main__":
    main(sys.argv[1:])
