"""An optimizer for the trunk and one for the head."""

import torch
from opacus import PrivacyEngine
from torch import nn

from tests.torch.opacus_scripts.tiny import table

loader = table(shuffle=True)
trunk, head = nn.Sequential(nn.Linear(6, 8), nn.ReLU()), nn.Linear(8, 3)
model = nn.Sequential(trunk, head)
optimizer = torch.optim.SGD(trunk.parameters(), lr=0.1)
head_optimizer = torch.optim.Adam(head.parameters(), lr=1e-2)
privacy_engine = PrivacyEngine()
model, optimizer, loader = privacy_engine.make_private(
    module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=1.0, max_grad_norm=1.0
)
for x, y in loader:
    optimizer.zero_grad()
    head_optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    head_optimizer.step()
epsilon = privacy_engine.get_epsilon(1e-3)
