"""GPT-2 whose shifted loss over real tokens is computed in the loop, as in many a training script."""

import torch
import torch.nn.functional as F
from opacus import PrivacyEngine
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel

from tests.torch.opacus_scripts.tiny import LENGTH, WORDS, texts

rows = [x.masked_fill(torch.arange(LENGTH) > 1 + i % 5, 0) for i, (x, _) in enumerate(texts().dataset)]
loader = DataLoader(rows, batch_size=16, shuffle=True)
config = GPT2Config(
    vocab_size=WORDS, n_positions=LENGTH, n_embd=8, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
)
model = GPT2LMHeadModel(config).train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
privacy_engine = PrivacyEngine()
model, optimizer, loader = privacy_engine.make_private(
    module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=1.0, max_grad_norm=1.0
)
for ids in loader:
    optimizer.zero_grad()
    logits = model(input_ids=ids, attention_mask=(ids != 0).long()).logits
    shift_logits, shift_labels = logits[..., :-1, :].contiguous(), ids[..., 1:].contiguous()
    loss = F.cross_entropy(shift_logits.view(-1, WORDS), shift_labels.view(-1), ignore_index=0)
    loss.backward()
    optimizer.step()
epsilon = privacy_engine.get_epsilon(1e-3)
