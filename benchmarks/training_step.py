"""Cost of a training step with correlated noise, against the same step with Opacus's independent noise.

    python benchmarks/training_step.py [--json PATH] [--batch-size 256] [--bands 32] [--repeats 15]

Both train the same convolutional network on the same batches in one process, by turns, so that a noisy
machine disturbs both: forward pass, backward pass with per-example gradients, clipping, noise, update. The
stream's buffer is full from the start. Next to the wall-clock time stands the processor time, which other
work on the machine disturbs less. Delivery of the batch is timed on its own.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import platform
import statistics
import sys
import time
import warnings
from typing import Any

import torch
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from anechoic.mechanism import Mechanism
from anechoic.sampling import FixedOrder
from anechoic.strategies import BandedToeplitz, Toeplitz
from anechoic.torch import PrivacyEngine
from anechoic.workloads import prefix_sum

TARGET = 1.1  # by the project's own rule
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


def fill(optimizer: Any, loader: Any, bands: int) -> None:
    """Make `bands` releases without a gradient, after which the stream's buffer is full."""
    optimizer.source.sums = lambda _: [torch.zeros_like(p) for p in optimizer.params]
    while optimizer.ledger.releases < bands:
        for _ in loader:
            optimizer.step()
            if optimizer.ledger.releases == bands:
                break
    del optimizer.source.sums


def measure(batch_size: int, bands: int, repeats: int) -> dict[str, Any]:
    """Seconds of single steps, by turns."""
    steps = bands + repeats + 1
    features = torch.randn(4 * batch_size, 1, 28, 28)
    dataset = TensorDataset(features, torch.randint(10, (4 * batch_size,)))
    ours, theirs = network(), network()
    theirs.load_state_dict(copy.deepcopy(ours.state_dict()))
    strategy = BandedToeplitz(steps, Toeplitz.square_root(prefix_sum(bands)).coefficients)
    mechanism = Mechanism(strategy, FixedOrder(len(dataset), batch_size, steps=steps), NOISE_STD)
    module, optimizer, loader = PrivacyEngine().make_private(
        module=ours,
        optimizer=torch.optim.SGD(ours.parameters(), lr=0.01),
        data_loader=DataLoader(dataset, batch_size=batch_size, shuffle=True),
        mechanism=mechanism,
    )
    other = GradSampleModule(theirs)
    independent = DPOptimizer(
        torch.optim.SGD(theirs.parameters(), lr=0.01),
        noise_multiplier=NOISE_STD,
        max_grad_norm=1.0,
        expected_batch_size=batch_size,
    )
    fill(optimizer, loader, bands)
    criterion = nn.CrossEntropyLoss()
    seconds: dict[str, list[float]] = {"correlated": [], "independent": [], "delivery": []}
    processor: dict[str, list[float]] = {"correlated": [], "independent": []}
    made = 0
    while made <= repeats:
        start = time.perf_counter()
        for x, y in loader:
            seconds["delivery"].append(time.perf_counter() - start)
            turns = [("correlated", module, optimizer), ("independent", other, independent)]
            # the first of a pair finds other memory than the second: change places
            for name, model, private in turns if made % 2 else reversed(turns):
                begun, used = time.perf_counter(), time.process_time()
                private.zero_grad()
                criterion(model(x), y).backward()
                private.step()
                seconds[name].append(time.perf_counter() - begun)
                processor[name].append(time.process_time() - used)
            made += 1
            start = time.perf_counter()
            if made > repeats:
                break
    timed = {name: values[1:] for name, values in seconds.items()}  # the first warms up
    middle = {name: statistics.median(values) for name, values in timed.items()}
    used_middle = {name: statistics.median(values[1:]) for name, values in processor.items()}
    return {
        "parameters": sum(p.numel() for p in ours.parameters()),
        "batch_size": batch_size,
        "bands": bands,
        "repeats": repeats,
        "seconds": middle,
        "processor_seconds": used_middle,
        "ratio": middle["correlated"] / middle["independent"],
        "processor_ratio": used_middle["correlated"] / used_middle["independent"],
        "spread": {name: [min(values), max(values)] for name, values in timed.items()},
    }


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Measure, print, write JSON where asked to; returns what the JSON holds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--bands", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=15, help="timed steps of each")
    parser.add_argument("--json", help="file for the figures")
    options = parser.parse_args(arguments)
    warnings.filterwarnings("ignore", message="Full backward hook is firing")

    about = {
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "torch_threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
    }
    result = measure(options.batch_size, options.bands, options.repeats)
    seconds = result["seconds"]
    print(
        f"Training step, CNN with {result['parameters']:,} parameters, batch {options.batch_size},"
        f" {options.bands} bands, torch {about['torch']}, {about['torch_threads']} threads; medians of"
        f" {options.repeats}"
    )
    used = result["processor_seconds"]
    for title, name in (
        ("Opacus, independent noise", "independent"),
        ("anechoic, correlated noise", "correlated"),
    ):
        print(f"  {title:28}{seconds[name] * 1e3:9.1f} ms wall {used[name] * 1e3:9.1f} ms processor")
    print(
        f"  ratio                       {result['ratio']:9.3f}    wall {result['processor_ratio']:9.3f}   "
        " processor"
    )
    print(
        f"  delivery of a batch         {seconds['delivery'] * 1e3:9.1f} ms (target of the ratio: {TARGET})"
    )
    figures = {"benchmark": "training_step", "target_ratio": TARGET, "setting": about, "results": [result]}
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(figures, file, indent=2)
    return figures


if __name__ == "__main__":
    main(sys.argv[1:])
