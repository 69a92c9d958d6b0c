"""A training process for test_kill: it saves a checkpoint after every step until it ends, or is killed.

python killed.py CHECKPOINT WORKERS RESULT
"""

import os
import random
import sys

import numpy as np
import torch

from anechoic.torch import read_mechanism
from tests.torch.setting import data, mechanism, network, start, step, weights

STEPS = 40


def run(path, workers, result):
    mech = mechanism("cyclic", steps=STEPS, bands=2)
    if os.path.exists(path):
        mech = read_mechanism(path)
    else:  # the state from which all augmentations and dropout masks follow
        torch.manual_seed(11)
        np.random.seed(11)  # noqa: NPY002
        random.seed(11)
    training = start(
        mech=mech,
        model=network(dropout=0.3),
        dataset=data(40, augmented=True),
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.01),
        loader={"num_workers": workers},
        keys=not os.path.exists(path),
    )
    if os.path.exists(path):
        training.engine.load_checkpoint(path=path, module=training.module, optimizer=training.optimizer)
    print("from", training.engine.releases, flush=True)
    while training.engine.releases < STEPS:
        for batch in training.loader:
            step(training, batch)
            if path != "none":
                training.engine.save_checkpoint(
                    path=path, module=training.module, optimizer=training.optimizer
                )
            print(training.engine.releases, flush=True)
    torch.save(weights(training.model), result)


if __name__ == "__main__":
    run(sys.argv[1], int(sys.argv[2]), sys.argv[3])
