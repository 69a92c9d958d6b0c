"""A private training loop under Accelerate, to copy: micro-batches, bfloat16, checkpoints, evaluation.

python examples/accelerate_loop.py [FOLDER]    Start it again after it was killed, and it goes on bit for bit.
"""

import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

from anechoic.torch import BatchMemoryManager, PrivacyEngine, read_mechanism

EPOCHS, BATCH, AT_ONCE, SAVE_EVERY, DELTA = 3, 64, 24, 3, 1e-4


def data():
    x = torch.randn(384, 20, generator=torch.Generator().manual_seed(0))
    everything = TensorDataset(x, (x[:, :2].sum(1) > 0).long())
    return torch.utils.data.random_split(everything, [320, 64], torch.Generator().manual_seed(0))


def evaluate(network, loader):
    network.eval()
    with torch.no_grad():
        right = [(network(x).argmax(1) == y).float() for x, y in loader]
    network.train()
    return float(torch.cat(right).mean())


def main(folder, **keys):
    secret = folder.with_name(f"{folder.name}.private")  # keys and noise, as secret as the data
    for place in (folder, secret):
        place.mkdir(parents=True, exist_ok=True)
    path = secret / "run.ckpt"
    accelerator = Accelerator()  # no mixed_precision and no gradient_accumulation_steps: both are below
    device = accelerator.device
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(20, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2)).to(device)
    plain = torch.optim.AdamW(network.parameters(), lr=0.02)
    scheduler = torch.optim.lr_scheduler.LinearLR(plain, 1.0, 0.1, total_iters=EPOCHS * 5)
    train, test = data()
    engine = PrivacyEngine(journal=secret, **keys)
    model, private, loader = engine.make_private_with_epsilon(
        module=network,
        optimizer=plain,
        data_loader=DataLoader(train, batch_size=BATCH, shuffle=True),
        target_epsilon=8.0,
        target_delta=DELTA,
        max_grad_norm=1.0,
        epochs=EPOCHS,
        scheduler=scheduler,
        mechanism=read_mechanism(path) if path.exists() else "auto",
    )
    if path.exists():
        scheduler.load_state_dict(engine.load_checkpoint(path=path)["scheduler"])
    model, optimizer = accelerator.prepare(model, private)  # not the private loader
    held_out = accelerator.prepare(DataLoader(test, batch_size=64))
    with BatchMemoryManager(data_loader=loader, max_physical_batch_size=AT_ONCE, optimizer=private) as parts:
        while engine.releases < engine.mechanism.steps:
            for x, y in parts:
                before = engine.releases
                optimizer.zero_grad()
                with torch.autocast(device.type, dtype=torch.bfloat16, cache_enabled=False):
                    loss = torch.nn.functional.cross_entropy(model(x.to(device)), y.to(device))
                accelerator.backward(loss)
                optimizer.step()
                if engine.releases > before:  # the last part of a batch: one release
                    scheduler.step()
                    if engine.releases % SAVE_EVERY == 0:
                        state = {"scheduler": scheduler.state_dict()}
                        engine.save_checkpoint(path=path, checkpoint_dict=state)
            print(f"accuracy {evaluate(network, held_out):.3f}, epsilon {engine.get_epsilon(DELTA):.3f}")
    accelerator.save(network.state_dict(), folder / "network.pt")  # plain weights, to publish
    return engine


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "accelerate-run"))
