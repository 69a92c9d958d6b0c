"""A student of a frozen teacher that is called in the loop."""

import torch
import torch.nn.functional as F
from opacus import PrivacyEngine
from torch import nn

from tests.torch.opacus_scripts.tiny import table

loader = table(shuffle=True)
teacher = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3)).eval()
student = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
optimizer = torch.optim.AdamW(student.parameters(), lr=1e-2)
privacy_engine = PrivacyEngine()
student, optimizer, loader = privacy_engine.make_private(
    module=student, optimizer=optimizer, data_loader=loader, noise_multiplier=1.0, max_grad_norm=1.0
)
T, alpha = 2.0, 0.5
for x, y in loader:
    with torch.no_grad():
        teacher_logits = teacher(x)
    logits = student(x)
    soft = F.kl_div(
        F.log_softmax(logits / T, dim=1), F.softmax(teacher_logits / T, dim=1), reduction="batchmean"
    )
    loss = alpha * T * T * soft + (1 - alpha) * F.cross_entropy(logits, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
epsilon = privacy_engine.get_epsilon(1e-3)
