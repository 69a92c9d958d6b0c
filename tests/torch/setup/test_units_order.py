"""Loaders and models that move the rows of a batch, and what make_private says of other wrong arguments."""

import logging
import random
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import BatchSampler, DataLoader, Dataset, SequentialSampler, default_collate

from anechoic.errors import MismatchError, UnsupportedError
from anechoic.participation import MinSep
from anechoic.sampling import BallsInBins, FixedOrder, Poisson
from anechoic.torch import PrivacyEngine
from anechoic.torch.loading.fetching import check_repeats
from anechoic.torch.setup.mechanism_fit import fitting_batch
from anechoic.units.ownership import Units
from tests.torch.setting import data
from tests.torch.setting import private as made_private
from tests.torch.units_setting import EXAMPLES, IDS, unit_mechanism, unit_run


class Sequences(Dataset):
    """Sequences of 1 to 5 steps, with their label."""

    def __init__(self, examples=24):
        generator = torch.Generator().manual_seed(0)
        self.x = [torch.randn(1 + i // 5, 3, generator=generator) for i in range(examples)]

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], i % 2


def padded(items):
    lengths = torch.tensor([len(x) for x, _ in items])
    return pad_sequence([x for x, _ in items], batch_first=True), lengths, torch.tensor([y for _, y in items])


def by_length(items):
    return padded(sorted(items, key=lambda item: -len(item[0])))


def reversing(items):
    return padded(items[::-1])


def with_positions(items):
    x, lengths, y = padded(items)
    return {
        "x": x,
        "more": [lengths, {"y": y}],
        "positions": torch.arange(len(items)),
        "names": ["a"] * len(y),
    }


def augmented(items):
    x, lengths, y = padded(items)
    return x + torch.randn(x.shape), lengths, y


def raising(items):
    raise KeyError("no batch of five")


def second(items):
    x, lengths, y = padded(items)
    return x.transpose(0, 1), lengths, y


def second_sorted(items):
    return second(sorted(items, key=lambda item: -len(item[0])))


def second_alone_sorted(items):
    return {"x": second_sorted(items)[0]}


class Ascending(Sequences):
    def __getitems__(self, indices):  # as fancy indexing of HDF5 asks for
        return [self[i] for i in sorted(indices)]


class Asked(Sequences):
    def __getitems__(self, indices):
        return [self[i] for i in indices]


class Noisy(Sequences):
    def __getitem__(self, i):
        random.random(), np.random.random(), torch.rand(1)  # noqa: NPY002
        return super().__getitem__(i)


UNITS = Units(np.arange(24) % 6)
MOVED = "data set or collate_fn hands out rows in another .* without sorting"


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("dataset", "collate", "options", "moved"),
    [
        (Sequences, by_length, {}, MOVED),
        (Sequences, reversing, {}, MOVED),
        (Sequences, second_sorted, {"batch_first": False}, MOVED),
        (Sequences, second_alone_sorted, {"batch_first": False}, MOVED),
        (Ascending, padded, {}, MOVED),
        (Sequences, by_length, {"owned": False}, None),  # each example its own unit
        (Sequences, padded, {}, None),
        (Sequences, second, {"batch_first": False}, None),
        (Sequences, with_positions, {}, None),
        (Sequences, augmented, {}, None),
        (Noisy, augmented, {}, None),
        (Sequences, raising, {}, None),
        (Asked, padded, {}, None),
        (lambda: data(2), default_collate, {}, None),
    ],
)
def test_who_moves_rows_is_refused_and_no_random_state_touched(dataset, collate, options, moved, workers):
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()  # noqa: NPY002
    loader = DataLoader(dataset(), batch_size=6, collate_fn=collate, num_workers=workers)
    with pytest.raises(UnsupportedError, match=moved) if moved else nullcontext():
        check_repeats(loader, **{"batch_first": True, "owned": True, **options})
    after = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()  # noqa: NPY002
    assert before[:2] == after[:2] and torch.equal(before[2], after[2])


def test_make_private_tries_the_loader():
    with pytest.raises(UnsupportedError, match=r"collate_fn"):
        unit_run(
            ids=UNITS,
            sampling=FixedOrder(6, 6, steps=2),
            dataset=data(24),
            loader={"collate_fn": lambda items: default_collate(items[::-1])},
        )


# What make_private says.


def private(**options):
    loader = DataLoader(data(EXAMPLES), batch_size=3, shuffle=True)
    given = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "epochs": 1, "poisson_sampling": False}
    made_private(engine := PrivacyEngine(), **{"loader": loader, **given, "unit_ids": IDS, **options})
    return engine


def test_a_unit_without_a_name_is_refused_and_one_that_is_not_named_warned_of(caplog):
    for unit in ("", " ", 3):
        with pytest.raises(ValueError, match="must be a word that names what is protected"):
            private(unit=unit)
    with caplog.at_level(logging.WARNING, logger="anechoic"):
        assert private().mechanism.unit == "unit"
    assert "as unit='user'" in caplog.text
    caplog.clear()
    private(unit="user")
    assert "as unit='user'" not in caplog.text


def test_a_batch_sampler_needs_a_mechanism():
    class Own(BatchSampler):
        pass

    for kind in (BatchSampler, Own):
        loader = DataLoader(data(EXAMPLES), batch_sampler=kind(SequentialSampler(range(EXAMPLES)), 5, False))
        with pytest.raises(UnsupportedError, match=r"External\(participation, batch_size, steps\)"):
            private(loader=loader, participation=MinSep(1, 2), unit="user")


def test_a_batch_size_that_fits_is_named():
    mech = unit_mechanism(BallsInBins(11, 3, steps=6))
    plain = {"noise_multiplier": None, "max_grad_norm": None, "epochs": None, "poisson_sampling": True}
    loader = DataLoader(data(EXAMPLES), batch_size=3, shuffle=True)
    with pytest.raises(MismatchError, match="4 batches a pass, the mechanism 3.*batch_size and drop_last"):
        private(mechanism=mech, loader=loader, **plain)
    private(mechanism=mech, loader=DataLoader(data(EXAMPLES), batch_size=4, shuffle=True), **plain)
    mech = unit_mechanism(FixedOrder(11, 3, steps=8))
    loader = DataLoader(data(EXAMPLES), batch_size=3, shuffle=True, drop_last=True)
    with pytest.raises(MismatchError, match="drop_last=False.*Give the loader"):
        private(mechanism=mech, loader=loader, **plain)


def test_fitting_batch_agrees_with_brute_force():
    for count in range(1, 40):
        for period in range(1, 45):
            sizes = range(1, count + 1)
            whole = [s for s in sizes if -(-count // s) == period]
            cut = [s for s in sizes if count // s == period]
            found = fitting_batch(count, period)
            if found is None:
                assert not whole and not cut
            else:
                assert found[1] == (not whole) and found[0] in (cut if found[1] else whole)


def test_a_number_that_depends_on_the_draw_is_not_logged(caplog):
    owners = [[i % 11, (i + 1) % 11] if i < 30 else [i % 11] for i in range(EXAMPLES)]
    run = unit_run(ids=owners, sampling=BallsInBins(11, 11, steps=11))
    assert run.engine.unreachable_examples > 0
    assert "some examples can be in no batch" in caplog.text
    assert f"{run.engine.unreachable_examples} of {EXAMPLES} examples can" not in caplog.text
    caplog.clear()
    assert unit_run(ids=owners, sampling=Poisson(11, 3, 4)).engine.unreachable_examples == 0
    assert "no batch" not in caplog.text
    owners = [[i % 4, 4 + i % 2] if i < 10 else [i % 4] for i in range(EXAMPLES)]
    with caplog.at_level(logging.INFO, logger="anechoic"):
        run = unit_run(ids=owners, sampling=FixedOrder(6, 1, steps=6))  # whose order is public
    assert run.engine.unreachable_examples == 10
    assert "10 of 40 examples can be in no batch" in caplog.text
    assert "10 examples have several owners" in caplog.text
