"""A transformer whose last layer and head are trained, as in tutorials/building_text_classifier.ipynb."""

import torch
from opacus import PrivacyEngine
from torch import nn

from tests.torch.opacus_scripts.tiny import LENGTH, WORDS, texts


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.norm, self.output = nn.LayerNorm(8), nn.Linear(8, 8)

    def forward(self, x):
        scores = self.query(x) @ self.key(x).transpose(1, 2) / 8**0.5
        return self.norm(x + self.output(scores.softmax(-1) @ self.value(x)))


class Bert(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.positions = nn.Embedding(WORDS, 8), nn.Embedding(LENGTH, 8)
        self.layers = nn.ModuleList([Layer(), Layer()])
        self.classifier = nn.Linear(8, 3)

    def forward(self, input_ids, labels):
        x = self.words(input_ids) + self.positions(torch.arange(LENGTH))
        for layer in self.layers:
            x = layer(x)
        logits = self.classifier(x[:, 0])
        return nn.functional.cross_entropy(logits, labels), logits


model = Bert()
for p in model.parameters():
    p.requires_grad = False
for part in (model.layers[-1], model.classifier):
    for p in part.parameters():
        p.requires_grad = True
loader = texts()
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=5e-4, eps=1e-8)
privacy_engine = PrivacyEngine()
model, optimizer, loader = privacy_engine.make_private_with_epsilon(
    module=model.train(), optimizer=optimizer, data_loader=loader, target_delta=1e-3, target_epsilon=7.5,
    epochs=1, max_grad_norm=0.1,
)  # fmt: skip
for batch in loader:
    optimizer.zero_grad()
    loss, logits = model(input_ids=batch[0], labels=batch[1])
    loss.backward()
    optimizer.step()
epsilon = privacy_engine.get_epsilon(1e-3)
