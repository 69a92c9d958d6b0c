"""Delivery: batch t for release t, whatever the workers, however the loop is left, empty or not."""

import random
from collections import namedtuple

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, default_collate

from anechoic.batches.fixed_order import FixedOrderBatches
from anechoic.batches.poisson import PoissonBatches
from anechoic.errors import DesynchronizedError, HorizonError
from anechoic.runs.ledger import Delivery, ReleaseLedger
from anechoic.sampling import CyclicPoisson, FixedOrder, Poisson
from anechoic.torch.loading.fetching import Fetcher, Request, empty_like
from anechoic.torch.loading.loader import BatchSource, PrivateDataLoader, split_evenly
from tests.marks import each_once, every_other, in_turn

KEY = bytes(range(32))
WORKERS = {
    "main": {},
    "one": {"num_workers": 1},
    "two": {"num_workers": 2, "prefetch_factor": 3},
    "lasting": {"num_workers": 2, "persistent_workers": True},
}


class Numbers(Dataset):
    """Example i is i, with a random number next to it from each global generator."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        drawn = (torch.rand(()).item(), np.random.rand(), random.random())  # noqa: NPY002
        return torch.tensor(index), torch.tensor(drawn, dtype=torch.float64)


def loader_of(sampling=None, *, workers=None, most=None, dataset=None, collate_fn=None, batch_first=True):
    sampling = sampling or FixedOrder(20, 3, epochs=2)
    plain = DataLoader(
        dataset or Numbers(sampling.examples), batch_size=3, collate_fn=collate_fn, **(workers or {})
    )
    if isinstance(sampling, FixedOrder):
        batches = FixedOrderBatches(sampling, KEY)
    else:
        batches = PoissonBatches(sampling, len(plain), KEY)
    ledger = ReleaseLedger(sampling.steps)
    ledger.start(KEY)
    return PrivateDataLoader(
        plain, BatchSource(batches, KEY), ledger, max_physical_batch_size=most, batch_first=batch_first
    )


def made(loader, delivery=None):
    """Pretend that the batch in hand was stepped."""
    if loader.ledger.due().last:
        with loader.ledger.releasing():
            pass
    else:
        with loader.ledger.summing():
            pass


def passes(loader, count=2):
    found = []
    for _ in range(count):
        for batch in loader:
            found.append(batch)
            made(loader)
    return found


def same(a, b):
    return len(a) == len(b) and all(
        torch.equal(x, y) for p, q in zip(a, b, strict=True) for x, y in zip(p, q, strict=True)
    )


@pytest.mark.parametrize(
    ("sampling", "name"), each_once([None, CyclicPoisson(20, 3, 2, 14)], ["one", "two", "lasting"])
)
@pytest.mark.few(1)
def test_batches_and_augmentations_do_not_depend_on_workers(name, sampling):
    expected = passes(loader_of(sampling))
    assert same(passes(loader_of(sampling, workers=WORKERS[name])), expected)
    drawn = torch.cat([batch[1] for batch in expected]).flatten()
    assert len(drawn.unique()) == len(drawn)  # nothing is drawn twice


def test_length_and_passes():
    loader = loader_of(FixedOrder(20, 3, steps=16))
    assert len(loader) == 7
    assert [len(list_of(loader)) for _ in range(3)] == [7, 7, 2]
    with pytest.raises(HorizonError, match="all n=16 releases"):
        iter(loader)


def list_of(loader):
    return [made(loader) for _ in loader]


@pytest.mark.parametrize("name", every_other(list(WORKERS)))
def test_only_the_newest_iterator_lives(name):
    loader = loader_of(workers=WORKERS[name])
    old = iter(loader)
    next(old)
    new = iter(loader)
    with pytest.raises(DesynchronizedError, match="stale"):
        next(old)
    assert len(next(new)[0]) == 3
    made(loader)
    with pytest.raises(DesynchronizedError, match="stale"):
        next(old)
    next(new)


def test_the_last_batch_of_a_pass_cannot_be_skipped_either():
    loader = loader_of()
    batches = iter(loader)
    for _ in range(6):
        next(batches)
        made(loader)
    next(batches)
    with pytest.raises(DesynchronizedError, match="batch 6 was delivered"):
        next(batches)


@pytest.mark.parametrize("name", every_other(list(WORKERS)))
def test_the_generators_of_the_training_loop_are_not_touched(name):
    loader = loader_of(workers=WORKERS[name])

    def states():
        numpy = np.random.get_state()  # noqa: NPY002
        return torch.get_rng_state().tolist(), random.getstate(), numpy[1].tolist(), numpy[2:]

    before = states()
    passes(loader)
    assert states() == before


# Micro-batches.


@in_turn("count", range(12))
@in_turn("most", [1, 2, 3, 5, 20, None])
def test_split(count, most):
    parts = split_evenly(list(range(count)), most)
    assert [index for part in parts for index in part] == list(range(count))
    sizes = [len(part) for part in parts]
    if most is None:
        assert len(parts) == 1
    else:
        assert max(sizes) <= most
        assert len(parts) == max(1, -(-count // most))
        assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("name", every_other(list(WORKERS)))
def test_micro_batches_hold_the_same_examples(name):
    whole = passes(loader_of())
    found, step = [], []
    loader = loader_of(workers=WORKERS[name], most=2)
    assert len(loader) == 6 * 2 + 1
    for _ in range(2):
        for batch in loader:
            delivery = loader.ledger.due()
            assert delivery.chunks == (2 if len(whole[delivery.step][0]) == 3 else 1)
            assert delivery.size == len(batch[0])
            step.append(batch[0])
            if delivery.last:
                found.append(torch.cat(step))
                step = []
            made(loader)
    assert all(torch.equal(a, b[0]) for a, b in zip(found, whole, strict=True))


# Batches of no example.

Pair = namedtuple("Pair", "x y")


@pytest.mark.parametrize(
    "collate",
    [
        lambda items: {
            "x": default_collate([i[1] for i in items]),
            "rest": [default_collate([i[0] for i in items])],
        },
        lambda items: Pair(default_collate([i[1] for i in items]), default_collate([i[0] for i in items])),
        lambda items: (default_collate([i[1] for i in items]), [str(i) for i in items]),
    ],
    ids=["dict", "namedtuple", "strings"],
)
def test_empty_batches_keep_their_structure(collate):
    loader = loader_of(Poisson(20, 1, 60), collate_fn=collate)
    full = empty = None
    for batch in loader:
        size = loader.ledger.due().size
        full, empty = (batch, empty) if size else (full, batch)
        made(loader)
    assert type(full) is type(empty)
    assert len(full) == len(empty)
    tensors = [
        v for v in (empty.values() if isinstance(empty, dict) else empty) if isinstance(v, torch.Tensor)
    ]
    assert [tuple(v.shape) for v in tensors if v.dim() > 1] == [(0, 3)]


def test_empty_batches_where_the_batch_comes_second():
    batch = [torch.ones(7, 4, 2), torch.ones(4)]
    assert [tuple(t.shape) for t in empty_like(batch, batch_first=False)] == [(7, 0, 2), (0,)]


def test_a_batch_that_cannot_be_emptied_is_refused():
    with pytest.raises(TypeError, match="holds a int"):
        empty_like({"x": torch.ones(2), "count": 2})


# Whole runs.


class Drawing(TensorDataset):
    """Tensors with a random number on top: no plain ones."""

    def __getitem__(self, index):
        return (super().__getitem__(index)[0] + torch.rand(()),)


def test_only_what_cannot_draw_is_fetched_without_a_seed():
    plain = TensorDataset(torch.arange(6.0))
    patched = TensorDataset(torch.arange(6.0))
    patched.__getitems__ = lambda indices: [(torch.rand(()),) for _ in indices]
    subclass = TensorDataset(torch.nn.Parameter(torch.arange(6.0)))
    for dataset, collate, draws in (
        (plain, default_collate, False),
        (Subset(plain, [1, 2]), default_collate, False),
        (plain, lambda batch: torch.rand(len(batch)), True),
        (patched, default_collate, True),
        (subclass, default_collate, True),
        (Drawing(torch.arange(6.0)), default_collate, True),
        (Subset(Drawing(torch.arange(6.0)), [1, 2]), default_collate, True),
    ):
        fetcher = Fetcher(dataset, collate, True)
        before = torch.get_rng_state()
        first, second = (
            fetcher.__getitems__(Request(Delivery(0, 2), [0, 1], bytes(32)))[1] for _ in range(2)
        )
        assert fetcher._draws is draws and torch.equal(before, torch.get_rng_state())
        assert all(map(torch.equal, first, second))
