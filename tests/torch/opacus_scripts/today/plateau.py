"""The learning rate falls, and training stops early, by the loss on public validation data."""

import copy

import torch
from opacus import PrivacyEngine
from torch import nn

from tests.torch.opacus_scripts.tiny import images, labels

train_loader = images(shuffle=True)
public = torch.randn(32, 1, 8, 8)
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 3))
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
privacy_engine = PrivacyEngine()
model, optimizer, train_loader = privacy_engine.make_private(
    module=model, optimizer=optimizer, data_loader=train_loader, noise_multiplier=1.0, max_grad_norm=1.0
)
best, best_state, bad = float("inf"), None, 0
for _ in range(4):
    model.train()
    for x, y in train_loader:
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        val_loss = criterion(model(public), labels(public)).item()
    scheduler.step(val_loss)
    if val_loss < best:
        best, best_state, bad = val_loss, copy.deepcopy(model.state_dict()), 0
    else:
        bad += 1
        if bad == 2:
            break
model.load_state_dict(best_state)
epsilon = privacy_engine.get_epsilon(1e-3)
