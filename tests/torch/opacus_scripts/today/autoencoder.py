"""A variational autoencoder: the sum of reconstruction and KL, divided by the rows of the batch."""

import torch
import torch.nn.functional as F
from opacus import PrivacyEngine
from torch import nn

from tests.torch.opacus_scripts.tiny import images


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(64, 8), nn.Linear(4, 64)

    def forward(self, x):
        mu, logvar = self.encoder(x.flatten(1)).chunk(2, dim=1)
        z = mu + torch.randn_like(mu) * torch.exp(0.5 * logvar)
        return torch.sigmoid(self.decoder(z)), mu, logvar


loader = images(shuffle=True)
model = VAE()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
privacy_engine = PrivacyEngine()
model, optimizer, loader = privacy_engine.make_private(
    module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=1.0, max_grad_norm=1.0
)
for x, _ in loader:
    optimizer.zero_grad()
    recon, mu, logvar = model(x)
    bce = F.binary_cross_entropy(recon, x.flatten(1).sigmoid(), reduction="sum")
    kl = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    loss = (bce + kl) / x.size(0)
    loss.backward()
    optimizer.step()
epsilon = privacy_engine.get_epsilon(1e-3)
