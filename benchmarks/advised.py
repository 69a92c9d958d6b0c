"""What a plan and its advice give at the first try: python benchmarks/advised.py --data-dir DIR

Fashion-MNIST in one pass of 1,024 steps of 29 in a fixed order, clip norm 1, delta 1e-6, by `PrivacyEngine`:
SGD with momentum .9, the schedule that is named, and the one learning rate of `engine.plan.advice`. No rate
is tuned for the run; the constants of the advice were chosen on small tasks, this one among them. Test
accuracy of the last iterate.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from anechoic.torch import PrivacyEngine

sys.path.insert(0, str(Path(__file__).parents[1]))  # the studies stand beside the benchmarks
from studies.data.fashion_mnist import fashion_mnist

STEPS, BATCH, DELTA = 1024, 29, 1e-6


def model_of(hidden: int) -> nn.Sequential:
    """Softmax regression that begins at 0, or one hidden layer of ReLUs."""
    if hidden:
        return nn.Sequential(nn.Flatten(), nn.Linear(784, hidden), nn.ReLU(), nn.Linear(hidden, 10))
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    for p in model.parameters():
        nn.init.zeros_(p)
    return model


def accuracy(
    data: TensorDataset,
    held: tuple[torch.Tensor, torch.Tensor],
    hidden: int,
    epsilon: float,
    schedule: str,
    noise: str,
) -> tuple[float, float]:
    """On the test images, and the rate that was advised."""
    model = model_of(hidden)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
    engine = PrivacyEngine()
    private, released, loader = engine.make_private_with_epsilon(
        module=model,
        optimizer=optimizer,
        data_loader=DataLoader(data, batch_size=BATCH),
        target_epsilon=epsilon,
        target_delta=DELTA,
        epochs=1,
        max_grad_norm=1.0,
        poisson_sampling=False,
        mechanism=noise,
        scheduler=schedule,
    )
    advice = engine.plan.advice
    for group in optimizer.param_groups:
        group["lr"] = advice.rate
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, advice.factor)
    for x, y in loader:
        released.zero_grad()
        nn.functional.cross_entropy(private(x), y).backward()
        released.step()
        scheduler.step()
    with torch.no_grad():
        return float((model(held[0]).argmax(-1) == held[1]).float().mean()), advice.rate


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--schedules", nargs="+", default=["constant", "cooldown"])
    parser.add_argument("--noise", nargs="+", default=["identity", "auto"], help="names of mechanisms")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    images, labels, held, held_labels = fashion_mnist(options.data_dir)
    tested = torch.from_numpy(held.astype(np.float32)), torch.from_numpy(held_labels)
    print("| model | ε | noise | schedule | accuracy | rate |\n|---|---|---|---|---|---|", flush=True)
    for hidden, epsilon in ((0, 0.1), (0, 1.0), (32, 0.3), (32, 3.0)):
        for noise in options.noise:
            for schedule in options.schedules:
                found = []
                for seed in range(options.seeds):
                    torch.manual_seed(seed)
                    some = np.random.default_rng(1000 + seed).permutation(len(images))[: STEPS * BATCH]
                    data = TensorDataset(
                        torch.from_numpy(images[some].astype(np.float32)), torch.from_numpy(labels[some])
                    )
                    found.append(accuracy(data, tested, hidden, epsilon, schedule, noise))
                values = np.array(found)[:, 0]
                error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else 0.0
                model = f"hidden layer of {hidden}" if hidden else "softmax"
                print(
                    f"| {model} | {epsilon:g} | {noise} | {schedule} |"
                    f" {values.mean():.3f} ± {error:.3f} | {found[0][1]:.2g} |",
                    flush=True,
                )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
