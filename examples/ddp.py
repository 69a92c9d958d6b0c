"""A private training loop that several processes share, to copy: each has its rows and its noise.

    torchrun --nproc-per-node 2 examples/ddp.py FOLDER
    accelerate launch --cpu --num_processes 2 examples/ddp.py FOLDER
    python examples/ddp.py FOLDER

Under the same keys one process makes the same releases as two; each new run draws keys of its own, and
prints another hash of its weights. Start a run again after it was killed, on as many processes as you like,
and it goes on bit for bit, to the hash that it would have had.
"""

import hashlib
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

from anechoic.torch import PrivacyEngine, read_mechanism

EPOCHS, BATCH, CHUNK, SAVE_EVERY, DELTA = 3, 256, 32, 4, 1e-4


def data():
    x = torch.randn(1200, 20, generator=torch.Generator().manual_seed(0))
    everything = TensorDataset(x, (x[:, :2].sum(1) > 0).long())
    return torch.utils.data.random_split(everything, [1024, 176], torch.Generator().manual_seed(0))


def evaluate(network, loader):
    network.eval()
    with torch.no_grad():
        right = [(network(x).argmax(1) == y).float() for x, y in loader]
    network.train()
    return float(torch.cat(right).mean())


def main(folder, **keys):
    if "RANK" in os.environ and not dist.is_initialized():
        dist.init_process_group("gloo")
    rank = dist.get_rank() if dist.is_initialized() else 0
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "run.ckpt"  # secret: it holds the keys; rank 0 writes it, and every rank reads it
    torch.manual_seed(0)  # every rank begins with the same weights; no noise and no batch follows from this
    network = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))
    train, test = data()  # all of it on every rank, and no DistributedSampler
    engine = PrivacyEngine(chunk_rows=CHUNK, **keys)
    model, optimizer, loader = engine.make_private_with_epsilon(
        module=network,
        optimizer=torch.optim.SGD(network.parameters(), lr=0.5, momentum=0.9),
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
        for x, y in loader:  # this rank's rows of the batch: perhaps none
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            if engine.releases % SAVE_EVERY == 0:
                engine.save_checkpoint(path=path)  # on every rank
    weights = torch.cat([p.detach().reshape(-1) for p in network.parameters()])
    if rank == 0:
        print(f"accuracy {evaluate(network, DataLoader(test, batch_size=64)):.3f}")
        print(f"epsilon {engine.get_epsilon(DELTA):.2f}")
        print(f"weights {hashlib.sha256(weights.numpy().tobytes()).hexdigest()}")
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "ddp-run"))
