"""A recommender, trained privately, a user an example: python examples/recommender.py [--epochs 20]

Each user has a list of items and one more, liked or not. Lists are padded to one length, as each user needs a
row; EmbeddingBag leaves the padding out (padding_idx). Its flat form with offsets has no rows: refused.
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from anechoic.torch import PrivacyEngine

USERS, TRAINED, ITEMS, LONGEST, DELTA = 6000, 5000, 40, 20, 1e-5


def ratings() -> tuple[Tensor, Tensor, Tensor]:
    """What users took, shape (USERS, LONGEST), 0 for nothing; an item of each; whether they like it."""
    taste, kinds = torch.randn(USERS, 2), torch.randn(ITEMS, 2)
    taken = 1 + torch.multinomial(torch.softmax(3 * taste @ kinds.T, 1), LONGEST)
    taken[torch.arange(LONGEST) >= torch.randint(4, LONGEST + 1, (USERS, 1))] = 0
    offered = torch.randint(ITEMS, (USERS,))
    yes = torch.rand(USERS) < torch.sigmoid(4 * (taste * kinds[offered]).sum(1))
    return taken, 1 + offered, yes.float()


class TwoTowers(nn.Module):
    """A user is the mean of what he took; what he makes of an item is a product of the two."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.took = nn.EmbeddingBag(ITEMS + 1, width, mode="mean", padding_idx=0)
        self.item = nn.Embedding(ITEMS + 1, width, padding_idx=0)
        self.user = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))

    def forward(self, taken: Tensor, offered: Tensor) -> Tensor:
        return (self.user(self.took(taken)) * self.item(offered)).sum(1)


@torch.no_grad()
def area(scores: Tensor, liked: Tensor) -> float:
    """Of the pairs of a liked and an unliked item, how many are in the right order (AUC)."""
    better = scores[liked == 1][:, None] - scores[liked == 0]
    return float((better > 0).float().mean() + 0.5 * (better == 0).float().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--epsilon", type=float, default=8.0)
    asked = parser.parse_args()
    torch.manual_seed(0)
    taken, offered, liked = ratings()
    model, engine = TwoTowers(), PrivacyEngine()
    data = TensorDataset(taken[:TRAINED], offered[:TRAINED], liked[:TRAINED])
    model, optimizer, loader = engine.make_private_with_epsilon(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9),
        data_loader=DataLoader(data, batch_size=250, shuffle=True),
        target_epsilon=asked.epsilon, target_delta=DELTA, epochs=asked.epochs, max_grad_norm=1.0,
    )  # fmt: skip
    for _ in range(asked.epochs):
        for lists, items, targets in loader:
            optimizer.zero_grad()
            F.binary_cross_entropy_with_logits(model(lists, items), targets).backward()
            optimizer.step()
    with torch.no_grad():
        scores = model(taken[TRAINED:], offered[TRAINED:])
    print(f"held-out AUC {area(scores, liked[TRAINED:]):.3f}")
    print(f"epsilon {engine.get_epsilon(DELTA):.2f} at delta {DELTA:g}")


if __name__ == "__main__":
    main()
