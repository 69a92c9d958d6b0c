"""Cost of a training step with correlated noise, beside the same step with Opacus's independent noise.

    python benchmarks/training_step.py [--json PATH] [--batch-sizes 32 256] [--bands 32] [--repeats 15]
        [--modes rows rows+exact ghost] [--networks mlp small large lora] [--plot PATH]
    python benchmarks/training_step.py --read benchmarks/records/training_step.json \\
        --plot docs/images/speed.svg

Both train the same network on batches of the same size in one process, by turns, so that a noisy machine
disturbs both: forward pass, backward pass with per-example gradients, clipping, noise, update. "rows" is the
default, and "rows+exact" has exact sums; Opacus's step is that of its hooks, and for "ghost" of its ghost
clipping. The stream's buffer is full from the start. Processor time is what other work on the machine
disturbs least. "beside" is what another network costs in the loop after our step(), over what it costs after
Opacus's.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

import torch
from opacus import GradSampleModule
from opacus.grad_sample import GradSampleModuleFastGradientClipping
from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from anechoic.mechanism.mechanism import Mechanism
from anechoic.noise.grid import default_bits
from anechoic.plots.style import BLUE, FRAME, GREEN, ORANGE, as_svg, blank, in_style
from anechoic.sampling import FixedOrder
from anechoic.strategies import BandedToeplitz, Toeplitz
from anechoic.torch import PrivacyEngine
from anechoic.workloads import prefix_sum

NOISE_STD, CLASSES = 1.0, 10


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, CLASSES))


def small() -> nn.Module:
    """A CNN for 28 x 28 images with 3,118 parameters."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 28, 28)),
        *(nn.Conv2d(1, 8, 3, stride=2), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Linear(144, 12), nn.Linear(12, CLASSES)),
    )


def large() -> nn.Module:
    """A small CNN with 1,060,576 parameters."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 28, 28)),
        *(nn.Conv2d(1, 32, 3, stride=2), nn.ReLU(), nn.Conv2d(32, 64, 3, stride=2), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(2304, 450), nn.ReLU(), nn.Linear(450, CLASSES)),
    )


class Adapter(nn.Module):
    """A frozen linear layer with a trained update of low rank."""

    def __init__(self, inputs: int, outputs: int, rank: int = 8) -> None:
        super().__init__()
        self.base = nn.Linear(inputs, outputs).requires_grad_(False)
        self.down, self.up = nn.Linear(inputs, rank, bias=False), nn.Linear(rank, outputs, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


def lora() -> nn.Module:
    """Frozen layers of 1.8 million parameters, adapters of 49,000."""
    layers = [layer for _ in range(3) for layer in (Adapter(784, 784), nn.ReLU())]
    return nn.Sequential(*layers, Adapter(784, CLASSES))


NETWORKS = {"mlp": mlp, "small": small, "large": large, "lora": lora}
#: Of the ratio of processor times, by network, batch size and mode.
TARGETS = {
    ("mlp", 32, "rows"): 1.7,
    ("small", 32, "rows"): 1.1,
    ("small", 32, "rows+exact"): 1.25,
    ("small", 256, "rows"): 0.9,
    ("small", 256, "rows+exact"): 1.0,
    ("large", 32, "rows"): 0.75,
    ("large", 32, "rows+exact"): 1.0,
    ("large", 256, "rows"): 0.56,
    ("large", 256, "rows+exact"): 0.74,
}


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
        torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.01),
        noise_multiplier=NOISE_STD,
        max_grad_norm=1.0,
        expected_batch_size=batch_size,
    )
    criterion: Any = nn.CrossEntropyLoss()
    return module, optimizer, DPLossFastGradientClipping(module, optimizer, criterion) if ghost else criterion


def correlated(model: nn.Module, batch_size: int, bands: int, repeats: int, mode: str) -> Any:
    """Our module, optimizer and loader, with the buffer of the noise full."""
    kind, _, exact = mode.partition("+")
    steps, own = bands + repeats + 1, [p for p in model.parameters() if p.requires_grad]
    dataset = TensorDataset(torch.randn(4 * batch_size, 784), torch.randint(CLASSES, (4 * batch_size,)))
    mechanism = Mechanism(
        BandedToeplitz(steps, Toeplitz.square_root(prefix_sum(bands)).coefficients),
        FixedOrder(len(dataset), batch_size, steps=steps),
        NOISE_STD,
        grid_bits=default_bits(sum(p.numel() for p in own)) if exact else None,
    )
    module, optimizer, *_, loader = PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(own, lr=0.01),
        criterion=nn.CrossEntropyLoss(),
        data_loader=DataLoader(dataset, batch_size=batch_size, shuffle=True),
        mechanism=mechanism,
        grad_sample_mode=kind,
    )
    fill(optimizer, loader, bands)
    return module, optimizer, loader


def timed(work: Callable[[], Any]) -> float:
    begun = time.process_time()
    work()
    return time.process_time() - begun


def endless(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def measure(name: str, batch_size: int, mode: str, bands: int, repeats: int) -> dict[str, Any]:
    """Processor seconds of single steps, by turns; the median of each."""
    ours, theirs, plain = NETWORKS[name](), NETWORKS[name](), NETWORKS[name]()
    theirs.load_state_dict(ours.state_dict())
    module, optimizer, loader = correlated(ours, batch_size, bands, repeats, mode)
    other, independent, their_criterion = opacus(theirs, batch_size, mode)
    fixed = torch.randn(batch_size, 784), torch.randint(CLASSES, (batch_size,))
    judge: Any = nn.CrossEntropyLoss()

    def step(model: Any, private: Any, criterion: Any, x: Tensor, y: Tensor) -> None:
        private.zero_grad()
        criterion(model(x), y).backward()
        private.step()

    def evaluate() -> None:
        judge(plain(fixed[0]), fixed[1]).backward()

    seconds: dict[str, list[float]] = {key: [] for key in ("correlated", "independent", "alone", "beside")}
    for turn, (x, y) in zip(range(repeats + 1), endless(loader), strict=False):
        both = [
            ("correlated", lambda x=x, y=y: step(module, optimizer, judge, x, y)),
            ("independent", lambda: step(other, independent, their_criterion, *fixed)),
        ]
        # the first of a pair finds other memory than the second: change places
        for key, work in both if turn % 2 else both[::-1]:
            seconds[key].append(timed(work))
            seconds["beside" if key == "correlated" else "alone"].append(timed(evaluate))
    middle = {key: statistics.median(values[1:]) for key, values in seconds.items()}  # the first warms up
    return {
        **{"network": name, "parameters": sum(p.numel() for p in ours.parameters()), "mode": mode},
        **{"batch_size": batch_size, "bands": bands, "repeats": repeats, "processor_seconds": middle},
        "processor_ratio": middle["correlated"] / middle["independent"],
        "beside_ratio": middle["beside"] / middle["alone"],
        "target": TARGETS.get((name, batch_size, mode), 1.1 if mode == "ghost" else None),
    }


#: What a mode and a network are called in the picture.
SHOWN = {
    "rows": ("float sums", BLUE, "o"),
    "rows+exact": ("exact sums (default)", ORANGE, "s"),
    "ghost": ("ghost clipping", GREEN, "D"),
}
NAMES = {"mlp": "MLP", "small": "small CNN", "large": "CNN", "lora": "adapters (LoRA)"}


def drawn(results: list[dict[str, Any]]) -> Any:
    """A figure of the ratios: a line for each network and batch size, a mark for each mode."""
    from matplotlib.ticker import FuncFormatter, NullLocator

    lines = list(dict.fromkeys((r["network"], r["batch_size"]) for r in results))
    with in_style():
        figure = blank((6.4, 0.9 + 0.38 * len(lines)))
        axes = figure.add_subplot()
        axes.axvline(1.0, color=FRAME, linewidth=1.2, zorder=1)
        for number, (mode, (label, colour, marker)) in enumerate(SHOWN.items()):
            found = [r for r in results if r["mode"] == mode]
            places = [lines.index((r["network"], r["batch_size"])) + 0.2 * (number - 1) for r in found]
            ratios = [r["processor_ratio"] for r in found]
            axes.plot(ratios, places, marker, color=colour, label=label, markersize=6.5, mec="white")
        axes.set(xscale="log", xlabel="processor time of a step over that of Opacus")
        axes.set_xticks([0.5, 0.7, 1.0, 1.4, 2.0])
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_yticks(range(len(lines)), [f"{NAMES[name]}, batch {size}" for name, size in lines])
        axes.invert_yaxis()
        figure.legend(loc="outside upper right", ncols=len(SHOWN))
    return figure


def plot(figures: dict[str, Any], path: Path | None) -> None:
    if path is not None:
        title = (
            "Processor time of a private training step over that of Opacus, for each network, batch and mode"
        )
        path.write_text(as_svg(drawn(figures["results"]), title), "utf-8")


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Measure, print, write JSON where asked to; returns what the JSON holds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[32, 256])
    parser.add_argument("--bands", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=15, help="timed steps of each")
    parser.add_argument("--networks", choices=NETWORKS, nargs="+", default=list(NETWORKS))
    parser.add_argument("--json", help="file for the figures")
    parser.add_argument("--plot", type=Path, help="SVG file for a picture of the ratios")
    parser.add_argument("--read", type=Path, help="such a file, to draw it instead of measuring")
    modes = ("rows", "rows+exact", "ghost")
    parser.add_argument("--modes", choices=modes, nargs="+", default=list(modes))
    options = parser.parse_args(arguments)
    warnings.filterwarnings("ignore", message="Full backward hook is firing")
    if options.read:
        figures: dict[str, Any] = json.loads(options.read.read_text("utf-8"))
        plot(figures, options.plot)
        return figures
    about: dict[str, Any] = {
        "date": str(date.today()),
        "load": [os.getloadavg()[0]],
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "torch_threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
    }
    print(f"Processor time of a step in ms, medians of {options.repeats}; {options.bands} bands; {about}")
    results = []
    for name in options.networks:
        for size in options.batch_sizes:
            for mode in options.modes:
                found = measure(name, size, mode, options.bands, options.repeats)
                used = {key: 1e3 * value for key, value in found["processor_seconds"].items()}
                target = "" if found["target"] is None else f", target {found['target']:.2f}"
                print(
                    f"  {name:6} B={size:<4} {mode:10} Opacus {used['independent']:8.2f}   anechoic"
                    f" {used['correlated']:8.2f}   ratio {found['processor_ratio']:.2f}{target}; another"
                    f" network beside it {found['beside_ratio']:.2f}",
                    flush=True,
                )
                results.append(found)
    about["load"].append(os.getloadavg()[0])
    figures = {"benchmark": "training_step", "setting": about, "results": results}
    plot(figures, options.plot)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(figures, file, indent=2)
    return figures


if __name__ == "__main__":
    main(sys.argv[1:])
