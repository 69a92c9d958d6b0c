"""Examples and their targets mixed in pairs."""

import numpy as np
import torch
import torch.nn.functional as F
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
    lam, index = np.random.beta(0.2, 0.2), torch.randperm(len(x))  # noqa: NPY002
    mixed_x = lam * x + (1 - lam) * x[index]
    optimizer.zero_grad()
    output = model(mixed_x)
    loss = lam * F.cross_entropy(output, y) + (1 - lam) * F.cross_entropy(output, y[index])
    loss.backward()
    optimizer.step()
epsilon = privacy_engine.get_epsilon(1e-3)
