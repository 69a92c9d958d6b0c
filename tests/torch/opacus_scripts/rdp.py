"""The accountant by name, as scripts of the first versions have it."""

import torch
from opacus import PrivacyEngine
from torch import nn

from tests.torch.opacus_scripts.tiny import table

loader, model = table(), nn.Linear(6, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
privacy_engine = PrivacyEngine(accountant="rdp")
model, optimizer, loader = privacy_engine.make_private_with_epsilon(
    module=model, optimizer=optimizer, data_loader=loader, target_epsilon=8.0, target_delta=1e-3, epochs=1,
    max_grad_norm=1.0,
)  # fmt: skip
for x, y in loader:
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
epsilon = privacy_engine.get_epsilon(1e-3)
