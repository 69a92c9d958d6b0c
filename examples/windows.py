"""Shifted windows, as Swin has them, trained privately on digits: python examples/windows.py [--epochs 20]

Attention within windows of 4 × 4 pixels, moved by 2 in every other block, with a bias by relative position.
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from anechoic.torch import PrivacyEngine

SIDE, WINDOW, WIDTH, HEADS, DELTA = 8, 4, 16, 2, 1e-5


class Block(nn.Module):
    """Attention within windows that are moved by `shift`, then a network of each pixel."""

    def __init__(self, shift: int) -> None:
        super().__init__()
        self.shift = shift
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))
        self.bias = nn.Parameter(torch.zeros((2 * WINDOW - 1) ** 2, HEADS))
        at = torch.cartesian_prod(torch.arange(WINDOW), torch.arange(WINDOW))
        apart = at[:, None] - at + WINDOW - 1  # (n, n, 2)
        self.register_buffer("place", apart[..., 0] * (2 * WINDOW - 1) + apart[..., 1])
        # pixels that a shift brings together from opposite borders do not see each other
        band = (torch.arange(SIDE) >= SIDE - WINDOW).long() + (torch.arange(SIDE) >= SIDE - shift).long()
        region = self.windows((3 * band[:, None] + band).view(1, SIDE, SIDE, 1))[..., 0]
        self.register_buffer("apart", (region[:, :, None] != region[:, None, :]) & (shift > 0))

    def windows(self, x: Tensor) -> Tensor:
        """(B, side, side, C) as (B * windows, pixels, C)."""
        b, k = len(x), SIDE // WINDOW
        return x.view(b, k, WINDOW, k, WINDOW, -1).transpose(2, 3).reshape(b * k * k, WINDOW**2, -1)

    def forward(self, x: Tensor) -> Tensor:
        b, k = len(x), SIDE // WINDOW
        moved = self.windows(torch.roll(self.norms[0](x), (-self.shift, -self.shift), (1, 2)))
        q, key, v = self.qkv(moved).view(b, k * k, WINDOW**2, 3, HEADS, -1).permute(3, 0, 1, 4, 2, 5)
        scores = q @ key.transpose(-2, -1) * q.shape[-1] ** -0.5 + self.bias[self.place].permute(2, 0, 1)
        scores = scores.masked_fill(self.apart[:, None], -torch.inf)
        seen = self.out((scores.softmax(-1) @ v).transpose(2, 3).flatten(3))
        seen = seen.view(b, k, k, WINDOW, WINDOW, WIDTH).transpose(2, 3).reshape(b, SIDE, SIDE, WIDTH)
        x = x + torch.roll(seen, (self.shift, self.shift), (1, 2))
        return x + self.mlp(self.norms[1](x))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--epsilon", type=float, default=8.0)
    asked, digits = parser.parse_args(), load_digits()
    torch.manual_seed(0)
    x, y = torch.tensor(digits.images / 16).float()[..., None], torch.tensor(digits.target)
    blocks = (nn.Linear(1, WIDTH), Block(0), Block(WINDOW // 2), nn.LayerNorm(WIDTH), nn.Flatten())
    model, engine = nn.Sequential(*blocks, nn.Linear(SIDE * SIDE * WIDTH, 10)), PrivacyEngine()
    model, optimizer, loader = engine.make_private_with_epsilon(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9),
        data_loader=DataLoader(TensorDataset(x[:1500], y[:1500]), batch_size=100, shuffle=True),
        target_epsilon=asked.epsilon, target_delta=DELTA, epochs=asked.epochs, max_grad_norm=1.0,
    )  # fmt: skip
    for _ in range(asked.epochs):
        for images, target in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(images), target).backward()
            optimizer.step()
    accuracy = float((model.eval()(x[1500:]).argmax(1) == y[1500:]).float().mean())
    print(f"held-out accuracy {accuracy:.3f}, epsilon {engine.get_epsilon(DELTA):.2f} at delta {DELTA:g}")


if __name__ == "__main__":
    main()
