"""A penalty on the weights in the loss."""

import torch
from opacus import PrivacyEngine
from torch import nn

from tests.torch.opacus_scripts.tiny import table

loader = table(shuffle=True)
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
privacy_engine = PrivacyEngine()
model, optimizer, loader = privacy_engine.make_private(
    module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=1.0, max_grad_norm=1.0
)
for x, y in loader:
    optimizer.zero_grad()
    l2 = sum(p.pow(2).sum() for p in model.parameters())
    loss = nn.functional.cross_entropy(model(x), y) + 1e-3 * l2
    loss.backward()
    optimizer.step()
epsilon = privacy_engine.get_epsilon(1e-3)
