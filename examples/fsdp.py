"""Private fine-tuning of a model that no process has as a whole, to copy: LoRA, and fully_shard.

    torchrun --nproc-per-node 2 examples/fsdp.py FOLDER
    python examples/fsdp.py FOLDER

Each process keeps a part of the frozen weights, and has those of one block while the block runs. The releases
are those of one process that has the whole model, bit for bit, on any number of processes. Start it again
after it was killed, and it goes on.
"""

import hashlib
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from peft import LoraConfig, get_peft_model
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset
from transformers import GPT2Config, GPT2Model

from anechoic.torch import PrivacyEngine, read_mechanism

EPOCHS, BATCH, CHUNK, SAVE_EVERY, DELTA = 4, 128, 16, 4, 1e-4
WORDS, LENGTH, WIDTH, LAYERS = 32, 8, 32, 3


class Classifier(nn.Module):
    """A transformer with adapters, and a head on its last position. Base weights are drawn at random."""

    def __init__(self):
        super().__init__()
        shape = GPT2Config(
            vocab_size=WORDS,
            n_positions=LENGTH,
            n_embd=WIDTH,
            n_layer=LAYERS,
            n_head=4,
            use_cache=False,
            bos_token_id=None,
            eos_token_id=None,
        )
        adapters = LoraConfig(target_modules=["c_attn"], r=4, lora_alpha=8, fan_in_fan_out=True)
        self.body = get_peft_model(GPT2Model(shape), adapters)
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, tokens):
        return self.head(self.body(tokens).last_hidden_state[:, -1])


def cut(model):
    """Each block is cut up by itself, and then what is left; trained weights are whole on every process."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    trained = {p for p in model.parameters() if p.requires_grad}
    for block in model.body.base_model.model.h:
        fully_shard(block, mesh=mesh, ignored_params=trained)
    fully_shard(model, mesh=mesh, ignored_params=trained)


def data():
    draw = torch.Generator().manual_seed(0)
    tokens = torch.randint(WORDS, (1280, LENGTH), generator=draw)
    everything = TensorDataset(tokens, (tokens[:, -1] >= WORDS // 2).long())
    return torch.utils.data.random_split(everything, [1024, 256], draw)


def main(folder):
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    rank = dist.get_rank() if dist.is_initialized() else 0
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "run.ckpt"  # secret: it holds the keys; rank 0 writes it, and every rank reads it
    torch.manual_seed(0)  # every rank begins with the same weights; no noise and no batch follows from this
    network = Classifier()
    if dist.is_initialized():
        cut(network)  # before the optimizer is made
    train, test = data()  # all of it on every rank, and no DistributedSampler
    trained = [p for p in network.parameters() if p.requires_grad]
    engine = PrivacyEngine(chunk_rows=CHUNK)
    model, optimizer, loader = engine.make_private_with_epsilon(
        module=network,
        optimizer=torch.optim.AdamW(trained, lr=1e-2),
        data_loader=DataLoader(train, batch_size=BATCH, shuffle=True),
        target_epsilon=8.0,
        target_delta=DELTA,
        max_grad_norm=1.0,
        epochs=EPOCHS,
        mechanism=read_mechanism(path) if path.exists() else "auto",
    )
    if path.exists():
        engine.load_checkpoint(path=path)
    while engine.releases < engine.mechanism.steps:
        for tokens, labels in loader:  # this rank's rows of the batch: perhaps none
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(tokens), labels).backward()
            optimizer.step()
            if engine.releases % SAVE_EVERY == 0:
                engine.save_checkpoint(path=path)  # on every rank
    model.eval()
    with torch.no_grad():  # on every rank too, whose weights are needed
        right = [(model(x).argmax(1) == y).float() for x, y in DataLoader(test, batch_size=64)]
    weights = torch.cat([p.detach().reshape(-1) for p in trained])
    if rank == 0:
        print(f"accuracy {float(torch.cat(right).mean()):.3f}")
        print(f"epsilon {engine.get_epsilon(DELTA):.2f}")
        print(f"weights {hashlib.sha256(weights.numpy().tobytes()).hexdigest()}")
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "fsdp-run"))
