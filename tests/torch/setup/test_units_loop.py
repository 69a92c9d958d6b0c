"""The training loop over units: micro-batches, workers, rows, contributions, checkpoints."""

import copy

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from anechoic.errors import DesynchronizedError, MismatchError
from anechoic.sampling import FixedOrder
from anechoic.units.ownership import Units
from tests.marks import each_once
from tests.torch.setting import data, managed, network, step, train, weights
from tests.torch.units_setting import EXAMPLES, IDS, scheme, unit_run

# Micro-batches, workers, empty batches.


@pytest.mark.parametrize(("name", "most"), each_once(["fixed", "poisson"], [4, 5, 9, 100]))
@pytest.mark.slow
def test_micro_batches_split_no_unit(most, name):
    sampling = scheme(name, 11, 10)
    whole, parts = (unit_run(ids=IDS, sampling=sampling, noise_std=0.5) for _ in range(2))
    with managed(parts, most) as loader:
        while parts.engine.releases < 10:
            for batch in loader:
                assert len(batch[0]) <= most
                step(parts, batch)
    assert torch.allclose(weights(parts.model), train(whole), atol=1e-5)


def test_a_unit_larger_than_a_micro_batch_is_refused():
    run = unit_run(ids=IDS, sampling=FixedOrder(11, 3, steps=4))
    with pytest.raises(MismatchError, match=r"up to 4 examples to one step.*max_examples=3"):
        managed(run, 3)
    run = unit_run(ids=Units(IDS, max_examples=3), sampling=FixedOrder(11, 3, steps=4))
    with managed(run, 3) as loader:
        for batch in loader:
            assert len(batch[0]) == 3
            step(run, batch)


# Rows.


@pytest.mark.parametrize(
    "change",
    [lambda x: x[:-1], lambda x: torch.cat([x, x[:1]]), lambda x: x[:0]],
    ids=["fewer", "more", "none"],
)
def test_another_number_of_rows_is_refused(change):
    run = unit_run(ids=IDS, sampling=FixedOrder(11, 3, steps=4))
    x, y = next(iter(run.loader))
    with pytest.raises(DesynchronizedError):
        step(run, (change(x), change(y)))
    assert run.engine.releases == 0


def by_numpy(tensor):
    return torch.from_numpy(tensor.numpy()[::-1].copy())


@pytest.mark.parametrize("reverse", [lambda t: t.flip(0), by_numpy])
def test_rows_in_another_order_are_refused(reverse):
    run = unit_run(ids=IDS, sampling=FixedOrder(11, 3, steps=4))
    x, y = next(iter(run.loader))
    with pytest.raises(DesynchronizedError, match="not have one row an|whose rows they are"):
        step(run, (reverse(x), reverse(y)))
    step(run, (x, y))
    assert run.engine.releases == 1
    with torch.no_grad():
        run.forward(x.flip(0))  # to look at predictions is free
    for hook in copy.deepcopy(run.model)._forward_pre_hooks.values():
        hook(run.model, (x.flip(0),), {})  # a copy of the model is another model


def test_an_example_that_is_not_finite_silences_its_unit_alone():
    x, y = data(EXAMPLES).tensors
    broken = x.clone()
    broken[0] = float("inf")
    ids = [0, 0, *range(1, EXAMPLES - 1)]
    found = unit_run(ids=ids, sampling=FixedOrder(39, 39, steps=1), dataset=TensorDataset(broken, y))
    without = unit_run(
        ids=list(range(38)), sampling=FixedOrder(38, 38, steps=1), dataset=TensorDataset(x[2:], y[2:])
    )
    moved = [(train(run, 1) - weights(network())) * count for run, count in ((found, 39), (without, 38))]
    assert torch.allclose(*moved, atol=1e-5)


# Stopping and resuming.


@pytest.mark.parametrize(
    "other",
    [
        lambda: np.roll(IDS, 1)[np.random.default_rng(0).permutation(EXAMPLES)],
        lambda: Units(IDS, combine="mean"),
        lambda: Units(IDS, max_examples=2),
    ],
    ids=["ids", "combine", "max_examples"],
)
def test_other_units_are_refused_on_resuming(tmp_path, other):
    sampling = FixedOrder(11, 3, steps=8)
    run = unit_run(ids=IDS, sampling=sampling, noise_std=0.5)
    train(run, 2)
    run.engine.save_checkpoint(path=tmp_path / "run.ckpt")
    changed = unit_run(ids=other(), sampling=sampling, noise_std=0.5, keys=False)
    with pytest.raises(MismatchError, match=r"units with digest [0-9a-f]{12}….*combine and max_examples"):
        changed.engine.load_checkpoint(path=tmp_path / "run.ckpt")
