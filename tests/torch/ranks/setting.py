"""Runs that several ranks share, for the tests of this room."""

from dataclasses import replace

import torch
from torch import nn
from torch.utils.data import DataLoader

from anechoic.runs.journal import read_journal
from anechoic.torch import PrivacyEngine
from tests.torch.setting import NOISE_KEY, SAMPLING_KEY, data, mechanism, network, weights

STEPS, ROWS = 6, 8


def exact(kind="fixed", **options):
    """A mechanism whose sums are integers."""
    return replace(
        mechanism(kind, **{"examples": 60, "batch_size": 20, "steps": STEPS, **options}), grid_bits=20
    )


def begun(
    mech=None,
    *,
    chunk_rows=ROWS,
    model=None,
    dataset=None,
    optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    loader=None,
    keys=True,
    journal=None,
    **options,
):
    """(engine, model, module, optimizer, loader) of a run on the ranks there are."""
    mech = exact() if mech is None else mech
    dataset = data(mech.sampling.examples or 60) if dataset is None else dataset
    model = network() if model is None else model
    plain = DataLoader(
        dataset, **(loader or {"batch_size": round(mech.expected_batch_size), "shuffle": True})
    )
    given = {"noise_key": NOISE_KEY, "sampling_key": SAMPLING_KEY} if keys else {}
    engine = PrivacyEngine(**given, chunk_rows=chunk_rows, journal=journal)
    made = engine.make_private(
        module=model, optimizer=optimizer(model.parameters()), data_loader=plain, mechanism=mech, **options
    )
    return engine, model, made[0], made[1], made[-1]


def train(run, steps=STEPS, *, criterion=None, each=None, weights=weights):
    """Step until `steps` releases are made, an empty part of a batch too; returns the weights."""
    engine, model, module, optimizer, loader = run
    criterion = criterion or getattr(engine._current().source, "criterion", None)
    criterion = criterion or nn.functional.cross_entropy
    while engine.releases < steps:
        for x, y in loader:
            optimizer.zero_grad()
            criterion(module(x), y).backward()
            optimizer.step()
            if each is not None:
                each(engine)
            if engine.releases == steps:
                break
    found = weights(model)
    return found.numpy() if isinstance(found, torch.Tensor) else found


def digests(folder):
    """Of all releases in the only journal in a folder."""
    (found,) = folder.glob("*.journal")
    return read_journal(found).digests
