"""A layer of one's own with a registered grad sampler, as in tutorials/guide_to_grad_sampler.ipynb."""

import torch
from opacus import PrivacyEngine
from opacus.grad_sample import register_grad_sampler
from torch import nn

from tests.torch.opacus_scripts.tiny import table


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(6))

    def forward(self, x):
        return x * self.weight


@register_grad_sampler(Scale)
def sample(layer, activations, backprops):
    return {layer.weight: activations[0] * backprops}


loader = table()
model = nn.Sequential(Scale(), nn.Linear(6, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
privacy_engine = PrivacyEngine()
model, optimizer, loader = privacy_engine.make_private(
    module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=1.0, max_grad_norm=1.0
)
for x, y in loader:
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
epsilon = privacy_engine.get_epsilon(1e-3)
