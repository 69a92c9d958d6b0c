"""A U-Net that segments images, trained privately: python examples/unet.py [--epochs 20]

Wanted are the pixels of a digit on a noisy ground. The network has batch normalisation, which mixes the
images of a batch: make_private refuses it, and names the line of main() that replaces it.
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from anechoic.torch import CorrectedAdam, PrivacyEngine

TRAINED, DELTA = 1500, 1e-5


def layers(inward: int, outward: int) -> list[nn.Module]:
    return [nn.Conv2d(inward, outward, 3, padding=1), nn.BatchNorm2d(outward), nn.PReLU()]


class UNet(nn.Module):
    def __init__(self, inward: int, width: int, levels: int) -> None:
        super().__init__()
        self.first = nn.Sequential(*layers(inward, width), *layers(width, width))
        self.down = nn.Conv2d(width, width, 2, stride=2)
        lowest = nn.Sequential(*layers(width, 2 * width), *layers(2 * width, 2 * width))
        self.inside = UNet(width, 2 * width, levels - 1) if levels > 1 else lowest
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.last = nn.Sequential(*layers(2 * width, width), *layers(width, width))

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        return self.last(torch.cat([h, self.up(self.inside(self.down(h)))], 1))


def images() -> tuple[Tensor, Tensor]:
    """Digits at random places, and their masks: shape (1797, 1, 16, 16) each."""
    ink = torch.tensor(load_digits().images).float()[:, None] / 16
    places = torch.randint(9, (len(ink), 2)).tolist()
    moved = [F.pad(digit, (i, 8 - i, j, 8 - j)) for digit, (i, j) in zip(ink, places, strict=True)]
    found = torch.stack(moved)
    return found + 0.3 * torch.randn_like(found), (found > 0.25).float()


def overlap(logits: Tensor, masks: Tensor) -> Tensor:
    """The Dice score of each image by itself, shape (rows,): one over the whole batch would mix them."""
    p = logits.sigmoid()
    return (2 * (p * masks).sum((1, 2, 3)) + 1) / ((p + masks).sum((1, 2, 3)) + 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--epsilon", type=float, default=8.0)
    asked = parser.parse_args()
    torch.manual_seed(0)
    x, y = images()
    engine, network = PrivacyEngine(), nn.Sequential(UNet(1, 8, levels=2), nn.Conv2d(8, 1, 1))
    model = PrivacyEngine.get_compatible_module(network)
    model, optimizer, loader = engine.make_private_with_epsilon(
        module=model, optimizer=CorrectedAdam(model.parameters(), lr=3e-3),
        data_loader=DataLoader(TensorDataset(x[:TRAINED], y[:TRAINED]), batch_size=100, shuffle=True),
        target_epsilon=asked.epsilon, target_delta=DELTA, epochs=asked.epochs, max_grad_norm=1.0,
    )  # fmt: skip
    for _ in range(asked.epochs):
        for inputs, masks in loader:
            optimizer.zero_grad()
            (1 - overlap(model(inputs), masks).mean()).backward()
            optimizer.step()
    print(f"held-out Dice score {overlap(model(x[TRAINED:]), y[TRAINED:]).mean().item():.3f}")
    print(f"epsilon {engine.get_epsilon(DELTA):.2f} at delta {DELTA:g}")


if __name__ == "__main__":
    main()
