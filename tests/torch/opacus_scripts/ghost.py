"""Ghost clipping, as in tutorials/building_text_classifier with grad_sample_mode="ghost"."""

import torch
from opacus import PrivacyEngine
from torch import nn

from tests.torch.opacus_scripts.tiny import table

loader, model = table(), nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.CrossEntropyLoss(reduction="mean")
privacy_engine = PrivacyEngine()
model, optimizer, criterion, loader = privacy_engine.make_private(
    module=model, optimizer=optimizer, data_loader=loader, criterion=criterion, noise_multiplier=1.0,
    max_grad_norm=1.0, grad_sample_mode="ghost",
)  # fmt: skip
for x, y in loader:
    optimizer.zero_grad()
    loss = criterion(model(x), y)
    loss.backward()
    optimizer.step()
    value = loss.item()
epsilon = privacy_engine.get_epsilon(1e-3)
