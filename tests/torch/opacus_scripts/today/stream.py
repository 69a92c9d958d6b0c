"""An iterable data set."""

import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from tests.torch.opacus_scripts.tiny import table


class Stream(IterableDataset):
    def __iter__(self):
        yield from table().dataset


loader = DataLoader(Stream(), batch_size=16)
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
privacy_engine = PrivacyEngine()
model, optimizer, loader = privacy_engine.make_private(
    module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=1.0, max_grad_norm=1.0
)
for x, y in loader:
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
epsilon = privacy_engine.get_epsilon(1e-3)
