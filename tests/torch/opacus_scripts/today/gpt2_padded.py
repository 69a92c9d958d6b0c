"""GPT-2 on padded texts whose padding has the label -100, with the loss of the model."""

import torch
from opacus import PrivacyEngine
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel

from tests.torch.opacus_scripts.tiny import LENGTH, WORDS, texts

torch.manual_seed(0)


def example(x, length):
    mask = (torch.arange(LENGTH) < length).long()
    ids = x * mask
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


rows = [example(x, 2 + i % (LENGTH - 1)) for i, (x, _) in enumerate(texts().dataset)]
loader = DataLoader(rows, batch_size=16, shuffle=True)
config = GPT2Config(
    vocab_size=WORDS, n_positions=LENGTH, n_embd=8, n_layer=1, n_head=2, tie_word_embeddings=False,
    bos_token_id=0, eos_token_id=0,
)  # fmt: skip
model = GPT2LMHeadModel(config).train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
privacy_engine = PrivacyEngine()
model, optimizer, loader = privacy_engine.make_private(
    module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=1.0, max_grad_norm=1.0
)
for _ in range(2):
    for batch in loader:
        optimizer.zero_grad()
        outputs = model(**batch)
        outputs.loss.backward()
        optimizer.step()
epsilon = privacy_engine.get_epsilon(1e-3)
