"""Rows of noise that have no room are made again: by the budget, as checkpoints say, the same release."""

import logging
from dataclasses import replace

import pytest
import torch
from torch.utils.data import TensorDataset

from anechoic.errors import MismatchError
from anechoic.strategies import BLT, BandedInverse
from anechoic.torch import PrivacyEngine, checkpoint
from tests.torch.setting import data, mechanism, network, private, start, train

STEPS = 15
PARAMETERS = sum(p.numel() for p in network().parameters())
INVERSE = BandedInverse(STEPS, [1.0, -0.5, 0.1])
ARITHMETIC = pytest.mark.parametrize("grid_bits", [None, 20])


def made(grid_bits, strategy=INVERSE):
    return replace(mechanism(), strategy=strategy, grid_bits=grid_bits)


def stored_bytes(grid_bits):
    return 3 * PARAMETERS * (4 if grid_bits is None else 8)


@ARITHMETIC
def test_a_budget_makes_rows_of_a_given_mechanism_again(grid_bits, caplog):
    needed, noise = stored_bytes(grid_bits), {}
    for budget, way in ((None, "store"), (needed, "store"), (needed - 1, "regenerate"), ("1B", "regenerate")):
        with caplog.at_level(logging.INFO, "anechoic"):
            run = start(mech=made(grid_bits), memory_budget=budget)
        release = run.optimizer.noise_adder
        assert release.storage == way
        assert ("rows are made again in each step" in caplog.text) == (way == "regenerate")
        caplog.clear()
        found = train(run, 6)
        held = release.noise_state.state_dict()["rows"]
        assert release.stream.memory_bytes == (needed if way == "store" else 0) and (len(held) == 0) == (
            way != "store"
        )
        noise.setdefault(way, []).append(found)
    for first, second in noise.values():
        assert torch.equal(first, second)
    stored, again = noise["store"][0], noise["regenerate"][0]
    if grid_bits is None:  # each is std * C^-1 Z, up to its own rounding
        assert torch.allclose(stored, again, atol=1e-6)
    else:
        assert torch.equal(stored, again)
    assert not torch.equal(again, train(start(mech=made(grid_bits), memory_budget=1, keys=False), 6))
    x, y = data().tensors
    for budget, way in ((3 * PARAMETERS * 8, "store"), (3 * PARAMETERS * 8 - 1, "regenerate")):
        double = {"model": network().double(), "dataset": TensorDataset(x.double(), y)}
        run = start(mech=made(None), memory_budget=budget, keys=False, **double)
        assert run.optimizer.noise_adder.storage == way  # float64 counts eight bytes


@ARITHMETIC
def test_what_cannot_be_made_again_is_refused_with_the_bytes(grid_bits):
    blt, model = made(grid_bits, BLT(STEPS, [0.2], [0.9])), network()
    needed = PARAMETERS * (4 if grid_bits is None else 16)
    with pytest.raises(ValueError, match=rf"memory_budget='10B'.* {needed} bytes.*Give as many"):
        start(mech=blt, model=model, memory_budget="10B")
    assert (
        start(mech=blt, model=model, memory_budget=needed).optimizer.noise_adder.stream.memory_bytes == needed
    )


@pytest.mark.slow
@pytest.mark.parametrize("exact_sums", [None, True, False])
def test_a_planned_run_is_on_a_grid_also_where_rows_have_no_room_there(exact_sums):
    """Two rows of float32 fit, and two of float64 do not."""
    options = {"epochs": 3, "noise_multiplier": 0.5, "max_grad_norm": 1.0, "poisson_sampling": False}
    options |= {"memory_budget": 2 * 4 * PARAMETERS, "exact_sums": exact_sums}
    private(engine := PrivacyEngine(), mechanism="output", **options)
    floats = exact_sums is False
    assert engine.arithmetic.exact == (not floats)
    storage = "store" if floats else "regenerate"
    assert engine.plan.chosen.noise_storage == engine._current().noise_adder.storage == storage
    assert ("made again in each step" in engine.plan.why()) == (not floats)


@pytest.mark.few(2)
@pytest.mark.parametrize("keys", [True, False])
@ARITHMETIC
def test_a_resumed_run_goes_on_as_it_was_begun(grid_bits, keys, tmp_path, other_process):
    path, mech = tmp_path / "run.ckpt", made(grid_bits)
    run = start(mech=mech, memory_budget=1)
    train(run, 4)
    run.engine.save_checkpoint(path=path, keys=keys)
    expected = train(run, 9)
    assert checkpoint.read(path)["noise_memory"] == "regenerate"
    for budget in (None, 1):
        other_process()
        resumed = start(mech=mech, keys=not keys, memory_budget=budget)
        resumed.engine.load_checkpoint(path=path)
        assert (
            resumed.optimizer.noise_adder.storage == "regenerate"
            and resumed.optimizer.noise_adder.stream.memory_bytes == 0
        )
        assert torch.equal(train(resumed, 9), expected)


@ARITHMETIC
def test_a_run_that_stores_is_not_resumed_without_room(grid_bits, tmp_path):
    path, mech = tmp_path / "run.ckpt", made(grid_bits)
    run = start(mech=mech)
    train(run, 4)
    run.engine.save_checkpoint(path=path)
    small = start(mech=mech, keys=False, memory_budget=1)
    with pytest.raises(MismatchError, match=f"{stored_bytes(grid_bits)} bytes of noise.*give as many"):
        small.engine.load_checkpoint(path=path)
    assert small.engine.releases == 0 and small.optimizer.noise_adder.storage == "regenerate"
    resumed = start(mech=mech, keys=False, memory_budget=stored_bytes(grid_bits))
    resumed.engine.load_checkpoint(path=path)
    assert torch.equal(train(resumed, 9), train(run, 9))
