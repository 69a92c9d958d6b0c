"""make_private on objects that a run of this process has already, as when a notebook cell is run twice."""

import logging

import pytest
from torch import optim
from torch.utils.data import DataLoader

from anechoic.errors import DesynchronizedError, GuaranteeError, UnsupportedError
from anechoic.torch import PrivacyEngine
from tests.torch.setting import backward, data, mechanism, start, train

MODES = ("auto", "ghost", "vmap_loss")


def again(run, **given):
    """The cell once more, with a new engine."""
    objects = {"module": run.model, "optimizer": run.optimizer.original_optimizer, "data_loader": run.plain}
    return PrivacyEngine().make_private(**objects | given, mechanism=mechanism())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.slow
def test_a_cell_that_ran_twice_before_training_begins_anew(mode):
    first = start(mode)
    batch = next(iter(first.loader))
    second = start(
        mode, model=first.model, optimizer=lambda _: first.optimizer.original_optimizer, keys=False
    )
    train(second, 3)
    assert second.engine.releases == 3
    for late in (first.optimizer.step, lambda: next(iter(first.loader))):
        with pytest.raises(DesynchronizedError, match="use what make_private returned last"):
            late()
    assert len(batch) == 2 and first.engine.releases == 0


@pytest.mark.parametrize("mode", MODES)
def test_a_cell_that_ran_twice_after_releases_is_told_so(mode):
    run = start(mode)
    train(run, 2)
    with pytest.raises(
        GuaranteeError, match=r"run of 2 releases.*notebook cell.*charge\(mechanism, releases=2"
    ):
        again(run)
    train(run, 3)


@pytest.mark.parametrize("names", [("module",), ("optimizer", "data_loader"), ("data_loader",)])
def test_what_make_private_returned_is_named(names):
    run = start("vmap_loss")
    train(run, 1)
    returned = {"module": run.module, "optimizer": run.optimizer, "data_loader": run.loader}
    expected = f"{' and '.join(names)} came out of make_private before"
    with pytest.raises(UnsupportedError, match=expected):
        again(start("vmap_loss"), **{name: returned[name] for name in names})


def test_another_optimizer_for_the_same_weights_is_told_what_to_charge(caplog):
    run = start("vmap_loss")
    train(run, 2)
    with caplog.at_level(logging.WARNING, logger="anechoic"):
        again(run, optimizer=optim.SGD(run.model.parameters(), lr=0.1))
    assert "earlier run of this process, of 2 releases" in caplog.text
    assert "engine.charge(earlier_engine.mechanism, releases=2)" in caplog.text


def test_a_refused_call_takes_nothing_away():
    run = start("vmap_loss")
    with pytest.raises(ValueError, match="the mechanism's is 8"):
        again(run, data_loader=DataLoader(data(40), batch_size=10))
    backward(run, next(iter(run.loader)))
    run.optimizer.step()
