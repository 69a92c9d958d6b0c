"""Low-rank adapters beside frozen layers, as in research and in the LoRA tutorial."""

import torch
from opacus import PrivacyEngine
from torch import nn

from tests.torch.opacus_scripts.tiny import table


class LoRALinear(nn.Module):
    def __init__(self, base, rank=2):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.lora_A = nn.Linear(base.in_features, rank, bias=False)
        self.lora_B = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.lora_B.weight)

    def forward(self, x):
        return self.base(x) + self.lora_B(self.lora_A(x))


model = nn.Sequential(LoRALinear(nn.Linear(6, 8)), nn.Tanh(), nn.Linear(8, 3))
loader = table(shuffle=True)
optimizer = torch.optim.Adam(filter(lambda p: p.requires_grad, model.parameters()), lr=1e-3)
privacy_engine = PrivacyEngine()
model, optimizer, loader = privacy_engine.make_private(
    module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=1.0, max_grad_norm=1.0
)
for x, y in loader:
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
epsilon = privacy_engine.get_epsilon(1e-3)
