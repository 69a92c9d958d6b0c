"""The release is the same, bit for bit, on every number of ranks."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from anechoic.mechanism.mechanism import Mechanism
from anechoic.participation import MinSep
from anechoic.sampling import External, Poisson
from anechoic.strategies import (
    BLT,
    BandedInverse,
    BandedToeplitz,
    Dense,
    Identity,
    Toeplitz,
    Tree,
)
from anechoic.torch import BatchMemoryManager
from tests.floats import same_bits
from tests.torch.ranks.processes import results
from tests.torch.ranks.setting import STEPS, begun, digests, exact, train
from tests.torch.setting import FEATURES, data, network
from tests.torch.units_setting import SCHEMES, scheme, unit_mechanism

RANKS = (1, 2, 3)


def everywhere(tmp_path, cases, *, ranks=RANKS):
    """Runs `cases`, by name, on each number of ranks; weights and releases of each are compared.

    A case is given a folder for its journal, and returns the weights.
    """
    first = {}
    for count in ranks:
        for name in cases:
            (tmp_path / f"{count} {name}").mkdir()
        every = lambda rank, count=count: {n: run(tmp_path / f"{count} {n}") for n, run in cases.items()}  # noqa: E731
        found = results(count, every)
        for name in cases:
            now = found[0][name], digests(tmp_path / f"{count} {name}")
            assert all(same_bits(now[0], other[name]) for other in found), f"{name}: ranks differ"
            assert len(now[1]) == STEPS
            before = first.setdefault(name, now)
            assert same_bits(before[0], now[0]) and before[1] == now[1], f"{name} on {count} ranks"
    return first


def case(mech=None, *, criterion=None, **options):
    return lambda folder: train(begun(mech, journal=folder, **options), criterion=criterion)


def schemes(count=60):
    made = {name: scheme(name, count, STEPS) for name in SCHEMES}
    return {name: replace(unit_mechanism(sampling, noise_std=0.5, unit="example"), grid_bits=20)
            for name, sampling in made.items()}  # fmt: skip


def loader_of(mech):
    sampling = mech.sampling
    size = getattr(sampling, "batch_size", None) or round(sampling.expected_batch_size)
    return {"batch_size": int(size), "shuffle": True}


def test_one_process_and_two_ranks(tmp_path):
    everywhere(tmp_path, {"poisson": case(exact("poisson"), model=network(dropout=0.3))}, ranks=(1, 2))


@pytest.mark.slow
def test_for_every_sampling_scheme(tmp_path):
    cases = {name: case(mech, loader=loader_of(mech)) for name, mech in schemes().items()}
    cut = replace(exact("poisson"), sampling=Poisson(60, 20, STEPS).at_most(24))
    cases["cut"] = case(cut, loader={"batch_size": 20, "shuffle": True})
    outside = External(MinSep(3, 2), 20, STEPS)
    order = [list(range(at, at + 20)) for at in (0, 20, 40)]
    given = replace(Mechanism(BandedToeplitz(STEPS, [1.0, 0.5]), outside, 0.5, 1.0), grid_bits=20)
    cases["given"] = case(given, loader={"batch_sampler": order}, dataset=data(60))
    found = everywhere(tmp_path, cases)
    assert len({weights.tobytes() for weights, _ in found.values()}) == len(cases)


STRATEGIES = {
    "identity": Identity(STEPS),
    "banded": BandedToeplitz(STEPS, [1.0, 0.6, 0.3]),
    "toeplitz": Toeplitz(STEPS, 0.5 ** np.arange(STEPS)),
    "dense": Dense(np.tril(np.full((STEPS, STEPS), 0.3)) + 0.7 * np.eye(STEPS)),
    "blt": BLT(STEPS, [0.4, 0.2], [0.9, 0.5]),
    "banded inverse": BandedInverse(STEPS, [1.0, -0.5]),
    "tree": Tree(STEPS),
    "restarted": BandedToeplitz(STEPS, [1.0, 0.2]),
}


@pytest.mark.slow
def test_for_strategies_of_every_kind(tmp_path):
    base = exact()
    cases = {name: case(replace(base, strategy=strategy)) for name, strategy in STRATEGIES.items()}
    cases["made again"] = case(replace(base, strategy=STRATEGIES["banded inverse"]), memory_budget=1)
    found = everywhere(tmp_path, cases)
    (stored, _), (made, _) = found["banded inverse"], found["made again"]
    assert same_bits(stored, made)


@pytest.mark.slow
def test_however_contributions_are_clipped(tmp_path):
    by_group = {"max_grad_norm": {"0.*": 0.75, "*": 1.0}}
    options = {
        "flat": (1.0, {}),
        "per layer": (1.0, {"clipping": "per_layer", "max_grad_norm": [0.5] * 4}),
        "per group": (1.25, {"clipping": "per_group", **by_group}),
        "automatic": (1.0, {"clipping": "automatic"}),
        "automatic by group": (1.25, {"clipping": "automatic", **by_group}),
    }
    scaled = TensorDataset(10 * data(60).tensors[0], data(60).tensors[1])  # or hardly any is clipped
    cases = {
        name: case(exact("poisson", clip_norm=norm), dataset=scaled, **how)
        for name, (norm, how) in options.items()
    }
    units = unit_mechanism(scheme("poisson", 12, STEPS), noise_std=0.5, clip_norm=1.0)
    units = replace(units, grid_bits=20)
    cases["per layer, units"] = case(
        units,
        unit_ids=np.arange(60) % 12,
        unit="user",
        dataset=scaled,
        loader=loader_of(units),
        **options["per layer"][1],
    )
    found = everywhere(tmp_path, cases)
    assert len({weights.tobytes() for weights, _ in found.values()}) == len(cases)


@pytest.mark.slow
def test_of_units_with_several_examples(tmp_path):
    cases = {}
    for name in ("fixed", "poisson", "bins"):
        mech = replace(unit_mechanism(scheme(name, 12, STEPS), noise_std=0.5), grid_bits=20)
        ids = np.arange(40) % 12
        for rows in (5, 8, 2):  # of which a unit brings more than two
            cases[f"{name} {rows}"] = case(
                mech, unit_ids=ids, unit="user", dataset=data(40), chunk_rows=rows, loader={**loader_of(mech)}
            )
    shared = [[int(i) % 12, int(i * 5) % 12] for i in range(40)]
    cases["shared"] = case(
        replace(unit_mechanism(scheme("poisson", 12, STEPS), noise_std=0.5), grid_bits=20),
        **{
            "unit_ids": shared,
            "unit": "user",
            "dataset": data(40),
            "loader": {"batch_size": 4, "shuffle": True},
        },
    )
    everywhere(tmp_path, cases)


class Attending(nn.Module):
    """Dropout of attention and of layers, a shared embedding, and a branch by the data of a row."""

    def __init__(self):
        super().__init__()
        self.put = nn.Linear(FEATURES, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=True)
        self.out = nn.Linear(8, 2)

    def forward(self, x):
        rows = self.layer(torch.stack([self.put(x), self.put(x * x), self.put(-x)], 1))
        if bool((x.sum() > 0).all()):
            rows = rows * 2
        return self.out(rows.mean(1))


@pytest.mark.slow
def test_whatever_the_model_draws_and_decides(tmp_path):
    def attending():
        torch.manual_seed(0)
        return Attending()

    poisson = exact("poisson")
    several = {
        "attention": lambda folder: train(begun(poisson, model=attending(), journal=folder)),
        "augmented": case(poisson, dataset=data(60, augmented=True)),
        "float64": lambda folder: train(
            begun(poisson, model=network().double(), dataset=_double(), exact_sums=True, journal=folder)
        ),
        "adam": case(poisson, optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=0.01)),
        "loss by rows": case(poisson, grad_sample_mode="vmap_loss"),
    }
    everywhere(tmp_path, several)


def _double():
    plain = data(60)
    return TensorDataset(plain.tensors[0].double(), plain.tensors[1])


def in_chunks(mech, rows, criterion, **options):
    """A run whose loop is given each chunk by itself."""

    def work(folder):
        engine, model, module, optimizer, loader = begun(mech, chunk_rows=rows, journal=folder, **options)
        while engine.releases < STEPS:
            with BatchMemoryManager(
                data_loader=loader, max_physical_batch_size=rows, optimizer=optimizer
            ) as parts:
                for x, y in parts:
                    optimizer.zero_grad()
                    criterion(module(x + 0.1 * torch.randn_like(x)), y).backward()
                    optimizer.step()
                    if engine.releases == STEPS:
                        break
        return torch.cat([p.detach().reshape(-1) for p in model.parameters()]).numpy()

    return work


@pytest.mark.slow
def test_whatever_the_loss_is_where_each_chunk_is_delivered_by_itself(tmp_path):
    def odd(outputs, targets):  # sums of rows in kernels whose rounding follows the shape
        return (torch.exp(outputs @ torch.full((2, 33), 0.1)).tanh().sum(1) * targets).mean()

    poisson = exact("poisson")
    cases = {f"chunks of {rows}": in_chunks(poisson, rows, odd) for rows in (3, 7)}
    cases["one logit"] = in_chunks(poisson, 5, lambda o, y: _one_logit(o[:, 0], y.float()))
    cases["smoothed"] = in_chunks(poisson, 5, nn.CrossEntropyLoss(label_smoothing=0.1))
    cases["collated"] = in_chunks(
        poisson, 5, odd, loader={"batch_size": 20, "shuffle": True, "collate_fn": _jitter}
    )
    cases["augmented"] = in_chunks(poisson, 5, odd, dataset=data(60, augmented=True))
    everywhere(tmp_path, cases)


_one_logit = nn.BCEWithLogitsLoss()


def _jitter(examples):
    x, y = torch.utils.data.default_collate(examples)
    return x + 0.01 * torch.randn(x.shape), y


def _each(loss, outputs, targets):
    # with reduction="mean" torch multiplies by the number of rows and divides by it, which is no exact one
    return loss(outputs[:, 0], targets.float(), reduction="none").mean()


LOSSES = {
    "cross entropy": nn.functional.cross_entropy,
    "one logit": lambda o, y: _each(nn.functional.binary_cross_entropy_with_logits, o, y),
    "huber": lambda o, y: _each(nn.functional.huber_loss, o, y),
    "sigmoid": lambda o, y: (o[:, 0].sigmoid() - y).square().mean(),
}


@pytest.mark.slow
def test_losses_of_rows_where_chunks_are_whole_vectors(tmp_path):
    mech = exact("poisson", examples=400, batch_size=140)
    everywhere(
        tmp_path,
        {name: case(mech, criterion=loss, chunk_rows=32, dataset=data(400)) for name, loss in LOSSES.items()},
    )
