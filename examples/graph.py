"""A graph network, each example a padded graph of its own: python examples/graph.py [--epochs 20]

The graphs are digits: inked pixels are nodes, neighbours are joined, and nodes know their ink and place. One
graph is what is protected. Subgraphs that are cut from a large graph share nodes: there one node is protected
only if `unit_ids` of make_private names all nodes of each subgraph.
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from anechoic.torch import PrivacyEngine

SIDE, MOST, WIDTH, DELTA = 8, 48, 32, 1e-5


def graphs() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Nodes (N, MOST, 3), adjacency (N, MOST, MOST), which nodes there are (N, MOST), classes (N,)."""
    digits = load_digits()
    ink, target = torch.tensor(digits.data / 16).float(), torch.tensor(digits.target)
    at = torch.cartesian_prod(torch.arange(SIDE), torch.arange(SIDE)) / (SIDE - 1)
    strongest, pixel = ink.topk(MOST)  # padding stands last, without ink
    there = (strongest > 0).float()
    places = at[pixel]
    nodes = torch.cat([strongest[..., None], places], 2) * there[..., None]
    near = (places[:, :, None] - places[:, None, :]).abs().amax(-1) < 1.5 / (SIDE - 1)
    return nodes, near * there[:, :, None] * there[:, None, :], there, target


class GraphNetwork(nn.Module):
    """Three rounds in which each node takes the mean of its neighbours, then the mean over nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.inward = nn.Linear(3, WIDTH)
        self.own = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.near = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, nodes: Tensor, adjacency: Tensor, there: Tensor) -> Tensor:
        mean = adjacency / adjacency.sum(2, keepdim=True).clamp(min=1)
        h = self.inward(nodes)
        for own, near in zip(self.own, self.near, strict=True):
            h = h + F.relu(own(h) + near(mean @ h))
        return self.head((h * there[..., None]).sum(1) / there.sum(1, keepdim=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--epsilon", type=float, default=8.0)
    asked = parser.parse_args()
    torch.manual_seed(0)
    *inputs, target = graphs()
    train = TensorDataset(*(t[:1500] for t in inputs), target[:1500])
    model, engine = GraphNetwork(), PrivacyEngine()
    model, optimizer, loader = engine.make_private_with_epsilon(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9),
        data_loader=DataLoader(train, batch_size=100, shuffle=True),
        target_epsilon=asked.epsilon, target_delta=DELTA, epochs=asked.epochs, max_grad_norm=1.0,
    )  # fmt: skip
    for _ in range(asked.epochs):
        for nodes, adjacency, there, classes in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(nodes, adjacency, there), classes).backward()
            optimizer.step()
    hit = model.eval()(*(t[1500:] for t in inputs)).argmax(1) == target[1500:]
    print(f"held-out accuracy {float(hit.float().mean()):.3f}")
    print(f"epsilon {engine.get_epsilon(DELTA):.2f} at delta {DELTA:g}")


if __name__ == "__main__":
    main()
