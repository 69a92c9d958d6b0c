"""LoRA by PEFT on a language model in bfloat16, as one loads it."""

import torch
from opacus import PrivacyEngine
from peft import LoraConfig, get_peft_model
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel

from tests.torch.opacus_scripts.tiny import LENGTH, WORDS, texts

rows = [{"input_ids": x, "labels": x} for x, _ in texts().dataset]
loader = DataLoader(rows, batch_size=16, shuffle=True)
config = GPT2Config(
    vocab_size=WORDS, n_positions=LENGTH, n_embd=8, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
)
base = GPT2LMHeadModel(config).to(torch.bfloat16)
options = LoraConfig(r=2, lora_alpha=4, lora_dropout=0.1, target_modules=["c_attn"], fan_in_fan_out=True)
model = get_peft_model(base, options).train()
optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=1e-3)
privacy_engine = PrivacyEngine()
model, optimizer, loader = privacy_engine.make_private(
    module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=1.0, max_grad_norm=1.0
)
for batch in loader:
    optimizer.zero_grad()
    loss = model(**batch).loss
    loss.backward()
    optimizer.step()
epsilon = privacy_engine.get_epsilon(1e-3)
