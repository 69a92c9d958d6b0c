"""Cost of a training step by grad_sample_mode: the default, ghost clipping, and a criterion by rows.

    python benchmarks/gradient_modes.py [--json PATH] [--models mlp …] [--modes rows ghost …]

The same batches, weights and mechanism in one process, by turns: forward and backward pass, clipping, noise,
and update, with every safeguard of the default.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
import warnings
from typing import Any

import torch
from opacus.layers import DPLSTM
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from anechoic.mechanism.mechanism import Mechanism
from anechoic.sampling import FixedOrder
from anechoic.strategies import Identity
from anechoic.torch import PrivacyEngine

TARGET = 1.2  # over the default
MODES = ("rows", "vmap_loss")  # and "ghost", for models whose layers it knows


def mlp() -> nn.Module:
    """270 thousand parameters."""
    return nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))


def cnn() -> nn.Module:
    """The network of training_step.py: 1.06 million parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, stride=2), nn.ReLU(), nn.Conv2d(32, 64, 3, stride=2), nn.ReLU(), nn.Flatten(),
        nn.Linear(2304, 450), nn.ReLU(), nn.Linear(450, 10),
    )  # fmt: skip


class Block(nn.Module):
    """Attention and a feed-forward layer, with dropout where asked for."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.qkv(self.first(x)).reshape(len(x), x.shape[1], 3, self.heads, -1)
        q, k, v = h.permute(2, 0, 3, 1, 4)
        h = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(h.transpose(1, 2).reshape(x.shape))
        return x + self.mlp(self.second(x))


class Transformer(nn.Module):
    """Two blocks of width 64 over 32 tokens: 130 thousand parameters."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(200, 64), nn.Embedding(32, 64)
        self.blocks = nn.Sequential(*(Block(64, 4, dropout) for _ in range(2)))
        self.head = nn.Linear(64, 10)

    def forward(self, t: torch.Tensor) -> torch.Tensor:
        places = torch.arange(t.shape[1]).expand(len(t), -1)
        return self.head(self.blocks(self.tokens(t) + self.places(places)).mean(1))  # type: ignore[no-any-return]


class Recurrent(nn.Module):
    """One LSTM of width 64 over 20 steps: 34 thousand parameters."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer, self.head = layer(64, 64, batch_first=True), nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(x)[0][:, -1])  # type: ignore[no-any-return]


#: Model for a mode, inputs for a number of rows, batch size.
MODELS: dict[str, Any] = {
    "mlp": (lambda mode: mlp(), lambda rows: torch.randn(rows, 784), 256),
    "cnn": (lambda mode: cnn(), lambda rows: torch.randn(rows, 1, 28, 28), 256),
    "transformer": (lambda mode: Transformer(), lambda rows: torch.randint(200, (rows, 32)), 64),
    "transformer, dropout": (lambda mode: Transformer(0.1), lambda rows: torch.randint(200, (rows, 32)), 64),
    "lstm, opacus": (lambda mode: Recurrent(DPLSTM), lambda rows: torch.randn(rows, 20, 64), 64),
    "lstm": (lambda mode: Recurrent(nn.LSTM), lambda rows: torch.randn(rows, 20, 64), 64),
}


def measure(name: str, modes: list[str], repeats: int) -> dict[str, Any]:
    """Milliseconds of single steps, by turns; the first two warm up."""
    make, inputs, size = MODELS[name]
    steps = repeats + 2
    dataset = TensorDataset(inputs(size), torch.randint(10, (size,)))
    runs = {}
    for mode in modes:
        torch.manual_seed(0)
        model = make(mode)
        made = PrivacyEngine().make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
            data_loader=DataLoader(dataset, batch_size=size),
            grad_sample_mode=mode,
            mechanism=Mechanism(Identity(steps), FixedOrder(size, size, steps=steps), 1.0),
        )
        runs[mode] = (made[0], made[1], made[2] if len(made) == 4 else nn.CrossEntropyLoss(), made[-1])
    wall: dict[str, list[float]] = {mode: [] for mode in modes}
    used: dict[str, list[float]] = {mode: [] for mode in modes}
    for _ in range(steps):
        for mode, (module, optimizer, criterion, loader) in runs.items():
            for x, y in loader:
                start, begun = time.perf_counter(), time.process_time()
                optimizer.zero_grad()
                criterion(module(x), y).backward()
                optimizer.step()
                wall[mode].append(1e3 * (time.perf_counter() - start))
                used[mode].append(1e3 * (time.process_time() - begun))
    processor = {mode: statistics.median(values[2:]) for mode, values in used.items()}
    return {
        "model": name,
        "batch_size": size,
        "parameters": sum(p.numel() for p in runs[modes[0]][0].parameters()),
        "wall_ms": {mode: statistics.median(values[2:]) for mode, values in wall.items()},
        "processor_ms": processor,
        "ratio": {mode: processor[mode] / processor[modes[0]] for mode in modes},
    }


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Measure, print, write JSON where asked to; returns what the JSON holds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--models", nargs="*", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--modes", nargs="*", default=list(MODES))
    parser.add_argument("--repeats", type=int, default=7, help="timed steps of each")
    parser.add_argument("--json", help="file for the figures")
    options = parser.parse_args(arguments)
    warnings.filterwarnings("ignore")
    results = [measure(name, options.modes, options.repeats) for name in options.models]
    print(f"Training step by grad_sample_mode, torch {torch.__version__}, {torch.get_num_threads()} threads,"
          f" medians of {options.repeats}; processor milliseconds, and over {options.modes[0]}")  # fmt: skip
    for result in results:
        parts = [f"{mode} {result['processor_ms'][mode]:8.1f} ({result['ratio'][mode]:.2f})"
                 for mode in options.modes]  # fmt: skip
        print(
            f"  {result['model']:22}{result['parameters']:>10,} x {result['batch_size']:<4}", "  ".join(parts)
        )
    about = {"torch": str(torch.__version__), "threads": torch.get_num_threads(), "cores": os.cpu_count()}
    figures = {"benchmark": "gradient_modes", "target_ratio": TARGET, "setting": about, "results": results}
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(figures, file, indent=2)
    return figures


if __name__ == "__main__":
    main(sys.argv[1:])
