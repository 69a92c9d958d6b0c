"""What a rank pays: seconds and bytes of noise on one and two ranks, and what sharing a step costs.

    python benchmarks/ranks.py [--dimension 2000000] [--steps 6] [--rounds 5] [--json FILE]

Noise: integers of 16 bands and of a BLT, a row of the whole vector and one of half of it. Steps: a network
of about 10^6 parameters, batches of 256 in a fixed order, by one process and by two ranks in the same chunks;
beside them plain training, by one process and by torch's DistributedDataParallel. Updates: AdamW of that
network, whole and divided (`share_optimizer`). Processor seconds, in turns, summed over ranks, and of the
rank that does most.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch._dynamo  # which the first optimizer of a process imports: once, before forks
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from anechoic.mechanism.mechanism import Mechanism
from anechoic.sampling import FixedOrder
from anechoic.strategies import BLT, BandedToeplitz, Identity
from anechoic.torch import PrivacyEngine
from anechoic.torch.optimizer import Update
from anechoic.torch.ranks.group import Ranks
from anechoic.torch.shared_update import SharedUpdate

BATCH, CHUNK, WARM, N = 256, 32, 2, 64


def on_ranks(count: int, work: Callable[[int], Any]) -> list[Any]:
    """work(rank) in forked processes under gloo; what each returns."""
    with tempfile.TemporaryDirectory() as folder:
        children = []
        for rank in range(count):
            child = os.fork()
            if child:
                children.append(child)
                continue
            try:
                if count > 1:
                    store = f"file://{folder}/store"
                    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=count)
                Path(folder, str(rank)).write_bytes(pickle.dumps(work(rank)))
                if count > 1:
                    dist.barrier()
            finally:
                os._exit(0)
        for child in children:
            os.waitpid(child, 0)
        return [pickle.loads(Path(folder, str(rank)).read_bytes()) for rank in range(count)]


def mechanism(strategy: Any, steps: int = N) -> Mechanism:
    made = Mechanism(strategy, FixedOrder(4 * BATCH, BATCH, steps=steps), 1.0, 1.0)
    return replace(made, grid_bits=20)


def noise(strategy: Any, dimension: int, steps: int) -> Callable[[int, int], tuple[float, int]]:
    """Processor seconds of a row, and bytes of memory, of rank r of R."""

    def measured(rank: int, count: int) -> tuple[float, int]:
        each = -(-dimension // count)
        stream = mechanism(strategy).stream(
            dimension,
            key=bytes(range(32)),
            backend="torch",
            offset=rank * each,
            length=min(each, dimension - rank * each),
        )
        state, row = stream.init(), None
        for _ in range(WARM):
            row, state = stream.next(state, out=row)
        before = time.process_time()
        for _ in range(steps):
            row, state = stream.next(state, out=row)
        return (time.process_time() - before) / steps, stream.memory_bytes

    return measured


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(784, 900), nn.ReLU(), nn.Linear(900, 300), nn.ReLU(), nn.Linear(300, 10))


def data() -> TensorDataset:
    source = torch.Generator().manual_seed(0)
    x = torch.randn(4 * BATCH, 784, generator=source)
    return TensorDataset(x, torch.randint(10, (len(x),), generator=source))


def private(steps: int) -> Callable[[int], float]:
    def work(rank: int) -> float:
        model = network()
        engine = PrivacyEngine(chunk_rows=CHUNK)
        net, optimizer, loader = engine.make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            data_loader=DataLoader(data(), batch_size=BATCH, shuffle=True),
            mechanism=mechanism(Identity(N)),
        )
        before = 0.0
        while engine.releases < WARM + steps:
            for x, y in loader:
                optimizer.zero_grad()
                nn.functional.cross_entropy(net(x), y).backward()
                optimizer.step()
                if engine.releases == WARM:
                    before = time.process_time()
                if engine.releases == WARM + steps:
                    break
        return (time.process_time() - before) / steps

    return work


def plain(steps: int) -> Callable[[int], float]:
    def work(rank: int) -> float:
        ranks = dist.get_world_size() if dist.is_initialized() else 1
        model = network()
        net = DistributedDataParallel(model) if ranks > 1 else model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x, y = data()[rank::ranks]
        x, y = x[: BATCH // ranks], y[: BATCH // ranks]
        before = 0.0
        for step in range(WARM + steps):
            if step == WARM:
                before = time.process_time()
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()
        return (time.process_time() - before) / steps

    return work


def update(steps: int) -> Callable[[int], tuple[float, int]]:
    """Processor seconds of an update, and bytes of the optimizer's state."""

    def work(rank: int) -> tuple[float, int]:
        parameters = list(network().parameters())
        optimizer = torch.optim.AdamW(parameters, lr=0.1)
        if dist.is_initialized():
            made: Update = SharedUpdate(optimizer, parameters, ranks=Ranks())
        else:
            made = Update(optimizer, parameters)
        before = 0.0
        for step in range(WARM + steps):
            if step == WARM:
                before = time.process_time()
            made.put([torch.ones_like(p) for p in parameters])
            made.step()
        kept = [
            v for state in optimizer.state.values() for v in state.values() if isinstance(v, torch.Tensor)
        ]
        return (time.process_time() - before) / steps, sum(v.nbytes for v in kept)

    return work


def main() -> None:
    parser = argparse.ArgumentParser(description="What a rank pays.")
    parser.add_argument("--dimension", type=int, default=2_000_000)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    strategies = {
        "independent": Identity(N),
        "16 bands": BandedToeplitz(N, 0.8 ** np.arange(16)),
        "BLT(4)": BLT(N, [0.2, 0.1, 0.05, 0.02], [0.99, 0.9, 0.5, 0.2]),
    }
    for name, strategy in strategies.items():
        one = noise(strategy, options.dimension, options.steps)
        shares, bytes_of = [], (0, 0)
        for _ in range(options.rounds):
            ((whole, all_bytes),) = on_ranks(1, lambda rank, one=one: one(rank, 1))
            parts = on_ranks(2, lambda rank, one=one: one(rank, 2))
            shares.append(max(seconds for seconds, _ in parts) / whole)
            bytes_of = all_bytes, max(size for _, size in parts)
        found[f"noise, {name}"] = {"seconds": statistics.median(shares), "bytes": bytes_of}
        share = bytes_of[1] / bytes_of[0] if bytes_of[0] else 0.0
        print(
            f"noise of {name}: one of two ranks takes {statistics.median(shares):.2f} of one process's time"
            f" ({min(shares):.2f} to {max(shares):.2f}), and {share:.2f} of its {bytes_of[0] / 1e6:.0f} MB"
        )
    sides = {"private": private(options.steps), "plain": plain(options.steps)}
    times: dict[str, list[tuple[float, float, float]]] = {name: [] for name in sides}
    for turn in range(options.rounds):
        for name in list(sides)[:: -1 if turn % 2 else 1]:
            (alone,) = on_ranks(1, sides[name])
            parts = on_ranks(2, sides[name])
            times[name].append((alone, sum(parts), max(parts)))
    for name, every in times.items():
        alone, both, largest = (statistics.median(column) for column in zip(*every, strict=True))
        extra = [two - one for one, two, _ in every]
        found[name] = {"one": alone, "two": both, "largest": largest}
        print(
            f"a step, {name}: {1e3 * alone:.1f} ms in one process, {1e3 * both:.1f} ms on two ranks"
            f" (ratio {both / alone:.2f}, {1e3 * statistics.median(extra):.1f} ms more),"
            f" {1e3 * largest:.1f} ms on the one that does most"
        )
    updates = []
    for _ in range(options.rounds):
        ((alone, all_bytes),) = on_ranks(1, update(8 * options.steps))
        parts = on_ranks(2, update(8 * options.steps))
        updates.append((alone, max(seconds for seconds, _ in parts)))
    one, divided = (statistics.median(column) for column in zip(*updates, strict=True))
    bytes_of = [all_bytes, *(size for _, size in parts)]
    found["update"] = {"one": one, "divided": divided, "bytes": bytes_of}
    print(
        f"an update of AdamW: {1e3 * one:.2f} ms in one process, {1e3 * divided:.2f} ms on the one of two"
        f" ranks that does most, with what is sent; state of {bytes_of} bytes"
    )
    if options.json:
        options.json.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
