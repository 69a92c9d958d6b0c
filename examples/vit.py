"""A vision transformer with a class token, trained privately: python examples/vit.py [--epochs 20]"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from anechoic.torch import PrivacyEngine

SIDE, PATCH, WIDTH, HEADS, DELTA = 8, 2, 32, 4, 1e-5


class ViT(nn.Module):
    """Patches and a class token, with positions that are learned, through torch's own encoder."""

    def __init__(self, depth: int = 2) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, WIDTH, PATCH, stride=PATCH)
        self.token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.places = nn.Parameter(0.02 * torch.randn(1, 1 + (SIDE // PATCH) ** 2, WIDTH))
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 2 * WIDTH, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, depth, nn.LayerNorm(WIDTH), enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, images: Tensor) -> Tensor:
        patches = self.patches(images).flatten(2).transpose(1, 2)  # (B, patches, width)
        x = torch.cat([self.token.expand(len(images), -1, -1), patches], 1) + self.places
        return self.head(self.encoder(x)[:, 0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--epsilon", type=float, default=8.0)
    asked = parser.parse_args()
    torch.manual_seed(0)
    digits = load_digits()
    x, y = torch.tensor(digits.images / 16).float()[:, None], torch.tensor(digits.target)
    model = ViT()
    engine = PrivacyEngine()
    model, optimizer, loader = engine.make_private_with_epsilon(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9),
        data_loader=DataLoader(TensorDataset(x[:1500], y[:1500]), batch_size=100, shuffle=True),
        target_epsilon=asked.epsilon,
        target_delta=DELTA,
        epochs=asked.epochs,
        max_grad_norm=1.0,
    )
    for _ in range(asked.epochs):
        for images, target in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(images), target).backward()
            optimizer.step()
    accuracy = float((model.eval()(x[1500:]).argmax(1) == y[1500:]).float().mean())
    print(f"held-out accuracy {accuracy:.3f}, epsilon {engine.get_epsilon(DELTA):.2f} at delta {DELTA:g}")


if __name__ == "__main__":
    main()
