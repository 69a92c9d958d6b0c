"""Accuracy on test data in every epoch, in eval mode, and the weights of the plain model in the end."""

import torch
from opacus import PrivacyEngine
from torch import nn

from tests.torch.opacus_scripts.tiny import table

loader, test_loader = table(), table(20)
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
privacy_engine = PrivacyEngine()
model, optimizer, loader = privacy_engine.make_private_with_epsilon(
    module=model, optimizer=optimizer, data_loader=loader, target_epsilon=8.0, target_delta=1e-3, epochs=2,
    max_grad_norm=1.0,
)  # fmt: skip
history = []
for _ in range(2):
    model.train()
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        right = sum(int((model(x).argmax(1) == y).sum()) for x, y in test_loader)
    history.append((right / len(test_loader.dataset), privacy_engine.get_epsilon(1e-3)))
nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 3)).load_state_dict(
    model._module.state_dict()
)
epsilon = history[-1][1]
