"""Batches of the loader's own, without Poisson sampling."""

import torch
from opacus import PrivacyEngine
from torch import nn

from tests.torch.opacus_scripts.tiny import table

loader, model = table(shuffle=True), nn.Linear(6, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
privacy_engine = PrivacyEngine()
model, optimizer, loader = privacy_engine.make_private_with_epsilon(
    module=model, optimizer=optimizer, data_loader=loader, target_epsilon=8.0, target_delta=1e-3, epochs=2,
    max_grad_norm=1.0, poisson_sampling=False,
)  # fmt: skip
for _ in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        assert len(x) == 16
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
epsilon = privacy_engine.get_epsilon(1e-3)
