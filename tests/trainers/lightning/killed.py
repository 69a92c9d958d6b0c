"""A training process for test_resume: fit() from the last checkpoint, if there is one; it says each release.

python -m tests.trainers.lightning.killed FOLDER
"""

import sys
from pathlib import Path

import torch

from tests.trainers.lightning.setting import fitted, flat, lightning, module


class Says(lightning.pytorch.Callback):
    def on_train_batch_end(self, trainer, *_):
        print("release", trainer.strategy.engine.releases, flush=True)


def run(folder):
    kept = lightning.pytorch.callbacks.ModelCheckpoint(
        dirpath=folder / "kept", every_n_train_steps=1, save_last=True
    )
    net, _ = fitted(
        folder, net=module(dropout=0.3), ckpt_path="last", callbacks=[Says(), kept], enable_checkpointing=True
    )
    torch.save(flat(net), folder / "weights.pt")


if __name__ == "__main__":
    run(Path(sys.argv[1]))
