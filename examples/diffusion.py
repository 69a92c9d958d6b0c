"""A diffusion model of digits (DDPM), trained privately: python examples/diffusion.py [--epochs 40]

Times and noise are drawn in the loop, from torch's global generator, one time for each row. Between the
delivery of a batch and its step() they follow from the sampling key, whatever the script has seeded.
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from anechoic.torch import PrivacyEngine

TIMES, PIXELS, WIDTH, DELTA = 100, 64, 128, 1e-5
KEPT = torch.cumprod(1 - torch.linspace(1e-3, 0.1, TIMES), 0)  # of the image's variance, at each time


class Denoiser(nn.Module):
    """The noise in an image of which some is left, by the time."""

    def __init__(self) -> None:
        super().__init__()
        self.inward, self.time = nn.Linear(PIXELS, WIDTH), nn.Linear(16, WIDTH)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.outward = nn.Linear(WIDTH, PIXELS)
        self.register_buffer("speeds", torch.logspace(0, -3, 8))

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        angles = time[:, None] * self.speeds
        when = self.time(torch.cat([angles.sin(), angles.cos()], 1))
        h = self.inward(x)
        for layer in self.layers:
            h = h + layer(F.silu(h + when))
        return self.outward(F.silu(h))


def loss_of(model: nn.Module, x: Tensor) -> Tensor:
    """The mean squared error of the noise that the model sees, at a random time for each row."""
    time, noise = torch.randint(TIMES, (len(x),)), torch.randn_like(x)
    kept = KEPT[time][:, None]
    return F.mse_loss(model(kept.sqrt() * x + (1 - kept).sqrt() * noise, time), noise)


@torch.no_grad()
def held_out(model: nn.Module, x: Tensor) -> float:
    """The mean loss over ten passes."""
    torch.manual_seed(1)
    return sum(float(loss_of(model, x)) for _ in range(10)) / 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--epsilon", type=float, default=8.0)
    asked = parser.parse_args()
    torch.manual_seed(0)
    x = torch.tensor(load_digits().data / 8 - 1).float()
    model, engine = Denoiser(), PrivacyEngine()
    before = held_out(model, x[1500:])
    model, optimizer, loader = engine.make_private_with_epsilon(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9),
        data_loader=DataLoader(TensorDataset(x[:1500]), batch_size=100, shuffle=True),
        target_epsilon=asked.epsilon, target_delta=DELTA, epochs=asked.epochs, max_grad_norm=1.0,
    )  # fmt: skip
    for _ in range(asked.epochs):
        for (images,) in loader:
            optimizer.zero_grad()
            loss_of(model, images).backward()
            optimizer.step()
    print(f"held-out loss {before:.3f} before, {held_out(model.eval(), x[1500:]):.3f} after training")
    print(f"epsilon {engine.get_epsilon(DELTA):.2f} at delta {DELTA:g}")


if __name__ == "__main__":
    main()
