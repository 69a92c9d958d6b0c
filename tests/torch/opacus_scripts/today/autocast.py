"""Autocast in bfloat16, a bar with the running loss, and accuracy as a count of hits."""

import torch
from opacus import PrivacyEngine
from torch import nn

from tests.torch.opacus_scripts.tiny import table

train_loader, val_loader = table(shuffle=True, drop_last=True), table()
model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 3))
criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
privacy_engine = PrivacyEngine()
model, optimizer, train_loader = privacy_engine.make_private(
    module=model, optimizer=optimizer, data_loader=train_loader, noise_multiplier=1.0, max_grad_norm=1.0
)
for _ in range(2):
    model.train()
    running_loss, correct, total = 0.0, 0, 0
    for x, y in train_loader:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device_type="cpu", dtype=torch.bfloat16):
            output = model(x)
            loss = criterion(output, y)
        loss.backward()
        optimizer.step()
        running_loss += loss.item() * len(x)
        correct += (output.argmax(1) == y).sum().item()
        total += len(x)
    model.eval()
    with torch.no_grad():
        hits = sum((model(x).argmax(1) == y).sum().item() for x, y in val_loader)
epsilon = privacy_engine.get_epsilon(1e-3)
