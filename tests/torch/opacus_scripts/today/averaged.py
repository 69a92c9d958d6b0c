"""An exponential average of the weights beside the model, evaluated after every epoch."""

import torch
from opacus import PrivacyEngine
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from tests.torch.opacus_scripts.tiny import table

loader, test_loader = table(shuffle=True), table()
model = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
ema_model = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
privacy_engine = PrivacyEngine()
model, optimizer, loader = privacy_engine.make_private(
    module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=1.0, max_grad_norm=1.0
)
for _ in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        ema_model.update_parameters(model)
    with torch.no_grad():
        hits = sum((ema_model(x).argmax(1) == y).float().sum().item() for x, y in test_loader)
epsilon = privacy_engine.get_epsilon(1e-3)
