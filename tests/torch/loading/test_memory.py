"""Micro-batches misused: a batch is released whole or not at all."""

import pytest
import torch
from opacus.utils.batch_memory_manager import BatchMemoryManager as OpacusManager

from anechoic.errors import DesynchronizedError, MismatchError
from anechoic.torch import BatchMemoryManager
from tests.torch.setting import ONE_MODE, backward, managed, start, step, train, weights


@pytest.mark.parametrize("mode", ONE_MODE)
@pytest.mark.slow
def test_a_batch_left_half_summed_is_refused_until_abandoned(mode):
    run, whole = start(mode), start(mode)
    before = weights(run.model)
    with managed(run, 3) as batches:
        for batch in batches:
            step(run, batch)
            break
        for loader in (batches, run.loader):
            with pytest.raises(DesynchronizedError, match="1 micro-batches of release 0"):
                iter(loader)
    assert run.engine.releases == 0
    assert torch.equal(weights(run.model), before)
    run.optimizer.abandon_batch()
    assert torch.equal(train(run), train(whole))


@pytest.mark.parametrize("mode", ONE_MODE)
def test_a_micro_batch_that_is_stepped_twice_or_skipped_is_refused(mode):
    run = start(mode)
    with managed(run, 3) as batches:
        iterator = iter(batches)
        step(run, next(iterator))
        with pytest.raises(DesynchronizedError, match="no batch was delivered"):
            run.optimizer.step()
        next(iterator)
        with pytest.raises(DesynchronizedError, match="1 micro-batches of release 0 are summed"):
            next(iterator)


def test_sums_left_over_are_refused():
    run = start()
    batch = next(iter(run.loader))
    backward(run, batch)
    run.optimizer.noise_adder.add_partial_sum([torch.ones_like(p) for p in run.model.parameters()])
    with pytest.raises(DesynchronizedError, match="left over"):
        run.optimizer.step()


@pytest.mark.parametrize("mode", ["rows", "ghost"])
def test_the_memory_manager_of_opacus_is_refused(mode):
    run = start(mode)
    with (
        OpacusManager(data_loader=run.loader, max_physical_batch_size=3, optimizer=run.optimizer) as batches,
        pytest.raises(DesynchronizedError, match="from anechoic.torch import BatchMemoryManager"),
    ):
        next(iter(batches))


def test_objects_of_two_runs_are_refused():
    one, other = start(), start()
    with pytest.raises(MismatchError, match="two runs"):
        BatchMemoryManager(data_loader=one.loader, max_physical_batch_size=3, optimizer=other.optimizer)
    with pytest.raises(MismatchError, match="DataLoader"):
        BatchMemoryManager(data_loader=one.plain, max_physical_batch_size=3, optimizer=one.optimizer)
    with pytest.raises(ValueError, match="max_physical_batch_size=0 must be at least 1"):
        managed(one, 0)
