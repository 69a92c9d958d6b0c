"""Training with exact sums: integers up to the release, the same whatever micro-batches and threads."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from anechoic.errors import GuaranteeError, MismatchError, UnsupportedError
from anechoic.noise import NoiseStream
from anechoic.noise.grid import default_bits, spacing
from anechoic.planning.compare import plan
from anechoic.planning.integer_noise import on_finest_grid
from anechoic.planning.update import UpdateRule
from anechoic.torch import PrivacyEngine, read_mechanism
from anechoic.torch.setup.planned import against_grid
from tests.torch.setting import NOISE_KEY, backward, mechanism, private, start, step

BITS = 20


def exact(**options):
    return replace(mechanism(**options), grid_bits=BITS)


def released(run, batches=1):
    """Noisy gradients of the next steps, as vectors."""
    found = []
    for batch in run.loader:
        step(run, batch)
        found.append(torch.cat([p.grad.flatten() for p in run.model.parameters()]).double().numpy().copy())
        if len(found) == batches:
            return found
    raise AssertionError


def test_a_release_is_a_sum_of_integers_and_a_row_of_integers():
    run = start(mech=exact())
    (found,) = released(run)
    unit = spacing(1.0, BITS) / 8
    row = run.mechanism.stream(len(found), key=NOISE_KEY)
    noise, _ = row.next(row.init())
    total = found / unit - noise
    assert np.abs(total - np.round(total)).max() < 0.26, "float32 keeps integers below 2**24 to a quarter"
    assert 0 < np.linalg.norm(total) <= 8 * 2**BITS


@pytest.mark.parametrize("mode", ["rows", "vmap_loss"])
@pytest.mark.slow
def test_removing_a_row_moves_the_sums_by_at_most_the_clip_norm(mode):
    """A row whose gradient is not finite counts as zero, which is what zero-out adjacency makes of it."""
    sums = []
    for gone in (None, 0, 3):
        run = start(mode, mech=exact(clip_norm=1e-5, steps=5), keys=False, shuffle=False)
        for x, y in run.loader:
            if gone is not None:
                x[gone] = float("nan")
            run.optimizer.zero_grad()
            backward(run, (x, y))
            sums.append(run.optimizer.source.sums(run.optimizer.ledger.due()))
            run.optimizer.abandon_batch()
            break
    for other in sums[1:]:
        moved = sum(int((a - b).square().sum()) for a, b in zip(sums[0], other, strict=True))
        assert 0.99 * 4**BITS < moved < 4**BITS


def test_sums_that_are_not_integers_are_refused_on_a_grid():
    run = start(mech=exact(), keys=False)
    for batch in run.loader:
        run.optimizer.zero_grad()
        backward(run, batch)
        with pytest.raises(GuaranteeError, match="int64"):
            run.optimizer.noise_adder.add_partial_sum([torch.zeros_like(p) for p in run.model.parameters()])
        break


def planned(*, mode="rows", model=None, strategy="identity", **options):
    """An engine that planned its mechanism."""
    given = {"target_epsilon": 2.0, "target_delta": 1e-5, "epochs": 2, "max_grad_norm": 1.0, **options}
    private(
        engine := PrivacyEngine(), model=nn.Linear(6, 2) if model is None else model, to_epsilon=True,
        mechanism=strategy, grad_sample_mode=mode, poisson_sampling=False, **given,
    )  # fmt: skip
    return engine


@pytest.mark.parametrize("mode", ["rows", "vmap_loss"])
@pytest.mark.parametrize("asked", [None, True])
def test_a_planned_mechanism_gets_the_default_grid(mode, asked):
    engine = planned(mode=mode, exact_sums=asked)
    assert engine.mechanism.grid_bits == default_bits(14)
    assert engine.mechanism.epsilon(1e-5) <= 2.0
    assert engine.plan.mechanism == engine.mechanism
    assert engine.arithmetic.exact and str(engine.arithmetic).startswith("exact sums: ")


@pytest.mark.parametrize(
    ("why", "options"),
    [
        ("exact_sums=False", {"exact_sums": False}),
        ("'ghost': it never has the gradient of a single example", {"mode": "ghost"}),
        ("parameters are float64", {"model": nn.Linear(6, 2).double()}),
        ("room for", {"max_grad_norm": 1e-305}),
        ("fewer grid_bits", {"target_epsilon": 1e-11, "target_delta": 1e-14}),
    ],
)
def test_without_a_grid_the_reason_is_said(why, options):
    engine = planned(**options)
    assert engine.mechanism.grid_bits is None and not engine.arithmetic.exact
    assert why in str(engine.arithmetic) and str(engine.arithmetic).startswith("sums in floating point: ")


def test_of_a_given_mechanism_the_grid_is_its_own_and_on_another_device_there_is_none():
    assert start(mech=exact(), keys=False).engine.arithmetic.exact
    assert "calibrate(…, grid_bits=…)" in start(keys=False).engine.arithmetic.reason
    found = against_grid("rows", [nn.Parameter(torch.empty(2, device="meta"))])
    assert "on the CPU" in found and not against_grid("rows", [nn.Parameter(torch.empty(2))])


@pytest.mark.parametrize(("strategy", "budget"), [("banded_toeplitz", 800), ("blt", 440)])
@pytest.mark.parametrize("asked", [None, True])
def test_a_budget_counts_the_bytes_that_are_used(strategy, budget, asked):
    """14 entries: a row of bands takes 112 bytes on a grid, and one of a BLT 224."""
    engine = planned(strategy=strategy, memory_budget=budget, exact_sums=asked)
    stream = engine.mechanism.stream(14, backend="torch")
    (row,) = [row for row in engine.plan.rows if row.chosen]
    assert row.memory == stream.memory_bytes <= budget
    assert row.history == stream.filter.rows
    assert row.mechanism == engine.mechanism
    assert engine.arithmetic.exact and stream.grid is not None


def test_a_budget_prefers_exact_sums_and_says_what_they_cost():
    """Five rows of float32 would fit, and on a grid as many would take 560 bytes."""
    engine = planned(strategy="banded_toeplitz", memory_budget=500)
    floats = planned(strategy="banded_toeplitz", memory_budget=500, exact_sums=False)
    assert engine.arithmetic.exact and engine.plan.chosen.memory <= 500 < 2 * floats.plan.chosen.memory
    said = re.search(r"has (\d+)% less error, by memory_budget=(\d+), .*exact_sums=False", engine.plan.reason)
    less = 1 - floats.plan.chosen.predicted / engine.plan.chosen.predicted
    assert int(said[1]) == round(100 * less) > 0 and int(said[2]) == 2 * floats.plan.chosen.memory
    wide = planned(strategy="banded_toeplitz", memory_budget=int(said[2]))
    assert wide.arithmetic.exact and wide.plan.chosen.name == floats.plan.chosen.name
    # three rows of float32 fit, of 56 bytes each, and on a grid not even two
    with pytest.warns(UserWarning, match=r"floating point: .* takes \d+ bytes, and memory_budget=200"):
        engine = planned(strategy="banded_toeplitz", memory_budget=200)
    assert not engine.arithmetic.exact and "memory_budget=200" in str(engine.arithmetic)
    assert "Sums are in floating point" in engine.plan.reason


@pytest.mark.slow
def test_noise_that_grows_late_gets_a_coarser_grid_before_the_run():
    """A trial of 128 steps saw nothing: the run ended in an error after some hundred."""
    m, momentum = 7850, UpdateRule("sgd", 0.9)
    given = {"examples": 2048, "batch_size": 2, "epochs": 1, "epsilon": 0.1, "delta": 1e-6, "dimension": m}
    found = plan(**given, random_sampling=False, optimizer=momentum, strategy="banded_toeplitz")
    made = on_finest_grid(found, m, 0.1, default_bits(m)).mechanism
    assert made.grid_bits < default_bits(m) and made.epsilon() <= 0.1

    def runs(mechanism, steps):
        stream = NoiseStream(
            mechanism.strategy, 8, std=3 * mechanism.noise_std, key=bytes([7] * 32),
            grid=2.0**-mechanism.grid_bits,
        )  # fmt: skip
        state = stream.init()
        for _ in range(steps):
            _, state = stream.next(state)

    runs(made, made.steps)
    fine = replace(made, grid_bits=default_bits(m))
    runs(fine, 128)
    with pytest.raises(GuaranteeError, match="fewer grid_bits"):
        runs(fine, fine.steps)


def test_a_run_without_a_grid_is_resumed_without_one(tmp_path):
    path = str(tmp_path / "run")
    before = planned(exact_sums=False)
    before.save_checkpoint(path=path)
    with pytest.raises(MismatchError, match=r"\(grid_bits=None\).*\(grid_bits=17\).*read_mechanism"):
        planned().load_checkpoint(path=path)
    again = planned(strategy=read_mechanism(path))
    again.load_checkpoint(path=path)
    assert again.mechanism.grid_bits is None


def test_what_does_not_fit_is_refused():
    with pytest.raises(GuaranteeError, match="fewer grid_bits"):
        planned(target_epsilon=1e-11, target_delta=1e-14, exact_sums=True)
    with pytest.raises(UnsupportedError, match="single example"):
        start("ghost", mech=exact(), keys=False)
    with pytest.raises(MismatchError, match="grid_bits=None"):
        start(mech=mechanism(), exact_sums=True, keys=False)
    with pytest.raises(MismatchError, match="grid_bits=20"):
        start(mech=exact(), exact_sums=False, keys=False)
    with pytest.raises(ValueError, match="exact_sums"):
        start(exact_sums="yes", keys=False)
