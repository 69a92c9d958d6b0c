"""BERT with a classification head, the model's own loss, warm-up and dict batches."""

import torch
from opacus import PrivacyEngine
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification, get_linear_schedule_with_warmup

from tests.torch.opacus_scripts.tiny import LENGTH, WORDS, texts

rows = [
    {"input_ids": x, "attention_mask": torch.ones_like(x), "labels": y, "text": f"text {i}"}
    for i, (x, y) in enumerate(texts().dataset)
]


def collate(batch):
    return {
        key: torch.stack([row[key] for row in batch]) for key in ("input_ids", "attention_mask", "labels")
    }


loader = DataLoader(rows, batch_size=16, shuffle=True, collate_fn=collate)
config = BertConfig(
    vocab_size=WORDS, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
    max_position_embeddings=LENGTH, num_labels=3,
)  # fmt: skip
model = BertForSequenceClassification(config)
for parameter in model.bert.embeddings.parameters():
    parameter.requires_grad = False
model.train()
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=5e-4)
epochs = 2
scheduler = get_linear_schedule_with_warmup(optimizer, 1, epochs * len(loader))
privacy_engine = PrivacyEngine()
model, optimizer, loader = privacy_engine.make_private(
    module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=1.0, max_grad_norm=1.0
)
for _ in range(epochs):
    for batch in loader:
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad(set_to_none=True)
epsilon = privacy_engine.get_epsilon(1e-3)
