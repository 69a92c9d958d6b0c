"""LoRA by PEFT on a base in bfloat16, with the classifier trained whole (modules_to_save)."""

import torch
from opacus import PrivacyEngine
from peft import LoraConfig, get_peft_model
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification

from tests.torch.opacus_scripts.tiny import LENGTH, WORDS, texts

rows = [{"input_ids": x, "labels": y} for x, y in texts().dataset]
loader = DataLoader(rows, batch_size=16, shuffle=True)
config = BertConfig(
    vocab_size=WORDS, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
    max_position_embeddings=LENGTH, num_labels=3,
)  # fmt: skip
base = BertForSequenceClassification(config).to(torch.bfloat16)
model = get_peft_model(
    base, LoraConfig(r=2, lora_alpha=4, target_modules=["query", "value"], modules_to_save=["classifier"])
)
model.train()
optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=1e-3)
privacy_engine = PrivacyEngine()
model, optimizer, loader = privacy_engine.make_private(
    module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=1.0, max_grad_norm=1.0
)
for batch in loader:
    optimizer.zero_grad()
    model(**batch).loss.backward()
    optimizer.step()
epsilon = privacy_engine.get_epsilon(1e-3)
