"""Batches in parts: each row is worked on once, by one process, beside the same rows wherever that is."""

import pytest

from anechoic.batches.base import batches_of
from anechoic.batches.of_units import UnitBatches
from anechoic.errors import MismatchError
from anechoic.runs.ledger import ReleaseLedger
from anechoic.sampling import FixedOrder, Poisson
from anechoic.torch.loading.fetching import BatchPartition
from anechoic.torch.loading.loader import BatchSource, RequestSampler
from anechoic.units.ownership import Units
from tests.marks import slow
from tests.torch.ranks.setting import begun
from tests.torch.setting import SAMPLING_KEY

KINDS = {"fixed": FixedOrder(50, 17, steps=12), "poisson": Poisson(50, 9, 12)}
UNITS = Units([[i % 13] if i % 5 else [i % 13, i % 4] for i in range(50)])


def batches_for(kind, units):
    if not units:
        return batches_of(KINDS[kind], SAMPLING_KEY)
    inner = FixedOrder(13, 5, steps=12) if kind == "fixed" else Poisson(13, 4, 12)
    return UnitBatches(UNITS, batches_of(inner, SAMPLING_KEY), SAMPLING_KEY)


def parts_on(batches, ranks, rows, most):
    """(step, examples, their items) of each part of all ranks, by the seed of its random numbers."""
    parts = {}
    for rank in range(ranks):
        ledger, steps = ReleaseLedger(12), set()
        for step in range(0, 12, batches.period):
            ledger.releases = step
            for request in RequestSampler(
                BatchSource(batches, SAMPLING_KEY, share=BatchPartition(rows, rank, ranks)), ledger, most
            ):
                delivery, start = request.delivery, 0
                steps.add(delivery.step)
                assert sum(delivery.parts) == len(request) == delivery.size
                assert most is None or delivery.size <= max(most, batches.largest_item)
                items = [] if delivery.units is None else delivery.units.items.tolist()
                for seed, size in zip(request.seeds, delivery.parts, strict=True):
                    assert seed not in parts
                    own = items[start : start + size]
                    parts[seed] = (
                        delivery.step,
                        request[start : start + size],
                        [item - min(own) for item in own],
                    )
                    start += size
        assert steps == set(range(12))  # every rank steps every batch
    return parts


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("units", [False, *slow(True)])
def test_every_row_is_worked_on_once_whatever_the_number_of_ranks(kind, units):
    batches = batches_for(kind, units)
    for rows in (1, 4, 7, 64):
        for most in (None, rows, 3 * rows):
            if most is not None and most < batches.largest_item:
                continue
            first = parts_on(batches, 1, rows, most)
            for ranks in (2, 3, 5):
                assert parts_on(batches, ranks, rows, most) == first  # drawn for under the same seeds
            for step in range(12):
                found = [part for at, part, _ in first.values() if at == step]
                assert sorted(row for part in found for row in part) == sorted(batches.batch(step).tolist())
                assert all(len(part) <= max(rows, batches.largest_item) for part in found)


def test_no_unit_is_in_two_parts():
    batches = batches_for("poisson", units=True)
    for step in range(12):
        count = sum(portion.units.count for portion in BatchPartition(4).process_parts(batches, step, None))
        assert count == batches.unit_batch(step).count
        parts = [BatchPartition(4, rank, 3).process_parts(batches, step, None)[0].units for rank in range(3)]
        assert sum(part.count for part in parts) == count


def test_micro_batches_below_a_chunk_are_refused():
    run = begun(chunk_rows=8)
    with pytest.raises(MismatchError, match=r"max_physical_batch_size=7 is below chunk_rows=8.*chunk_rows=7"):
        run[4].in_chunks(7)
    assert len(run[4].in_chunks(8)) == 9 and len(run[4].in_chunks(16)) == 6  # of three batches of 20
    with pytest.raises(ValueError, match="chunk_rows"):
        begun(chunk_rows=0)
