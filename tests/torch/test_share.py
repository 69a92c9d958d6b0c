"""Batches in parts: each row is worked on once, by one process, beside the same rows wherever that is."""

import numpy as np
import pytest

from anechoic.batches.base import batches_of
from anechoic.batches.of_units import UnitBatches
from anechoic.errors import MismatchError, UnsupportedError
from anechoic.runs.ledger import ReleaseLedger
from anechoic.sampling import FixedOrder, Poisson
from anechoic.torch import BatchMemoryManager
from anechoic.torch.loading.loader import Feed, Requests
from anechoic.torch.share import Share
from anechoic.units.ownership import Units
from tests.floats import same_bits
from tests.marks import slow
from tests.torch.ranks.setting import STEPS, begun, exact, train
from tests.torch.setting import SAMPLING_KEY

KINDS = {"fixed": FixedOrder(50, 17, steps=12), "poisson": Poisson(50, 9, 12)}
UNITS = Units([[i % 13] if i % 5 else [i % 13, i % 4] for i in range(50)])


def requests(batches, share, most=None):
    ledger = ReleaseLedger(12)
    found = []
    for step in range(0, 12, batches.period):
        ledger.releases = step
        found += list(Requests(Feed(batches, SAMPLING_KEY, share=share), ledger, most))
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("units", [False, *slow(True)])
def test_every_row_is_worked_on_once_whatever_the_number_of_ranks(kind, units):
    if units:
        inner = FixedOrder(13, 5, steps=12) if kind == "fixed" else Poisson(13, 4, 12)
        batches = UnitBatches(UNITS, batches_of(inner, SAMPLING_KEY), SAMPLING_KEY)
    else:
        batches = batches_of(KINDS[kind], SAMPLING_KEY)
    for rows in (1, 4, 7, 64):
        for most in (None, rows, 3 * rows):
            if most is not None and most < batches.largest_item:
                continue
            first = None
            for ranks in (1, 2, 3, 5):
                parts = {}
                for rank in range(ranks):
                    steps = set()
                    for request in requests(batches, Share(rows, rank, ranks), most):
                        steps.add(request.delivery.step)
                        assert sum(request.delivery.parts) == len(request.indices)
                        assert most is None or len(request.indices) <= max(most, batches.largest_item)
                        start = 0
                        for place, size in enumerate(request.delivery.parts):
                            part = request.indices[start : start + size]
                            seed = request.seed if request.delivery.alone else request.seeds[place]
                            start += size
                            assert seed not in parts
                            parts[seed] = request.delivery.step, part
                    assert steps == set(range(12))  # every rank steps every batch
                first = first or parts
                assert parts == first  # the same parts, drawn for under the same seeds
            for step in range(12):
                rows_of = [row for at, part in first.values() if at == step for row in part]
                assert sorted(rows_of) == sorted(batches.batch(step).tolist())
                assert units or all(len(part) <= rows for _, part in first.values())


def test_no_unit_is_in_two_parts():
    batches = UnitBatches(UNITS, batches_of(Poisson(13, 6, 12), SAMPLING_KEY), SAMPLING_KEY)
    for step in range(12):
        parts, whole = Share(4).parts(batches, step)
        items = [item for part in parts for item in part.items]
        assert items == list(range(whole.count))
        for part in parts:
            assert len(part.indices) <= 4 or len(part.items) == 1


def test_micro_batches_below_a_chunk_are_refused():
    run = begun(chunk_rows=8)
    with pytest.raises(MismatchError, match=r"max_physical_batch_size=7 is below chunk_rows=8.*chunk_rows=7"):
        run[4].in_chunks(7)
    assert len(run[4].in_chunks(8)) == 9 and len(run[4].in_chunks(16)) == 6  # of three batches of 20


def test_chunks_are_refused_where_there_are_none():
    with pytest.raises(UnsupportedError, match=r"chunk_rows=8 with grad_sample_mode='ghost'"):
        begun(grad_sample_mode="ghost", chunk_rows=8)
    with pytest.raises(ValueError, match="chunk_rows"):
        begun(chunk_rows=0)


@pytest.mark.slow
def test_chunks_together_and_apart_give_the_same_release():
    def apart(most):
        engine, model, module, optimizer, loader = begun(exact("poisson"), chunk_rows=4)
        with BatchMemoryManager(
            data_loader=loader, max_physical_batch_size=most, optimizer=optimizer
        ) as parts:
            return train((engine, model, module, optimizer, parts))

    whole = train(begun(exact("poisson"), chunk_rows=4))
    for most in (4, 8, 13):
        assert same_bits(apart(most), whole)
    assert not same_bits(whole, train(begun(exact("poisson"), chunk_rows=4), STEPS - 1))
    assert np.isfinite(whole).all()
