"""A plan that is made again with other last digits is the run's own; another plan is another one."""

import json
import logging
import os
import platform
import subprocess
import sys

import numpy as np
import pytest

import anechoic as an
from anechoic.mechanism.pin_to_saved import pin_to_saved
from anechoic.optimize import banded_toeplitz, blt
from anechoic.strategies import BandedToeplitz

FOUND = banded_toeplitz(an.workloads.prefix_sum(16), bands=4).strategy
SETTING = {"epsilon": 2.0, "delta": 1e-6, "clip_norm": 1.5}


def planned(strategy=FOUND, *, size=10, **options):
    order = an.sampling.FixedOrder(160, size, steps=16)
    return an.calibrate(strategy, sampling=order, **{**SETTING, **options})


def moved(strategy, by):
    """The same class with its coefficients moved by relative amounts up to `by`."""
    return BandedToeplitz(strategy.n, strategy.band * (1.0 + by * np.cos(np.arange(len(strategy.band)))))


def test_the_same_plan_with_other_digits_is_the_one_that_was_begun(caplog):
    begun, again = planned(), planned(moved(FOUND, 1e-5))
    assert again != begun
    with caplog.at_level(logging.WARNING, "anechoic"):
        found = pin_to_saved(again, begun.to_json())
    assert found == begun and found.epsilon() == pytest.approx(again.epsilon())
    assert begun.fingerprint[:12] in caplog.text and again.fingerprint[:12] in caplog.text


def test_the_very_same_plan_is_taken_without_a_word(caplog):
    with caplog.at_level(logging.WARNING, "anechoic"):
        plan = planned()
        assert pin_to_saved(plan, planned().to_json()) is plan
    assert not caplog.text


@pytest.mark.parametrize(
    "other",
    [
        {"epsilon": 2.001},
        {"epsilon": 1.999},
        {"delta": 1.001e-6},
        {"clip_norm": 1.501},
        {"adjacency": "replace_one"},
        {"unit": "user"},
        {"grid_bits": 20},
        {"size": 8},
        {"strategy": moved(FOUND, 0.05)},
        {"strategy": banded_toeplitz(an.workloads.prefix_sum(16), bands=5).strategy},
        {"strategy": blt(an.workloads.prefix_sum(16), buffers=2).strategy},
    ],
    ids=str,
)
def test_another_plan_stays_what_it_is(other):
    plan = planned(**other)
    assert pin_to_saved(plan, planned().to_json()) is plan


@pytest.mark.parametrize("written", [None, "", "{", "[]", "{}", json.dumps({"strategy": {"float64": "?"}})])
def test_where_nothing_readable_is_written_the_plan_stays(written):
    plan = planned()
    assert pin_to_saved(plan, written) is plan


def test_an_edited_record_is_refused():
    record = json.loads(planned(moved(FOUND, 1e-5)).to_json())
    record["noise_std"] *= 0.995
    with pytest.raises(an.errors.MismatchError, match="edited"):
        pin_to_saved(planned(), json.dumps(record))


CHILD = """
import sys
import anechoic as an
from anechoic import optimize, participation, sampling, streaming, workloads

found = optimize.blt(workloads.prefix_sum(128), buffers=4, loss="max").strategy
planned = an.calibrate(
    found, sampling=sampling.External(participation.Single(), 1, steps=128), epsilon=2.0, delta=1e-6
)
with streaming.Stream(streaming.Count(), mechanism=planned, state=sys.argv[1]) as stream:
    stream.update([1.0])
    stream.release()
    print(planned.fingerprint, stream.mechanism.fingerprint, stream.step)
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="kernels of other processors")
def test_a_run_that_plans_in_its_script_goes_on_under_every_kernel(tmp_path):
    planned, begun = [], []
    for kernel in ("Haswell", "Sandybridge", "Zen", "Haswell"):
        done = subprocess.run(
            [sys.executable, "-c", CHILD, str(tmp_path / "state")],
            env={**os.environ, "OPENBLAS_CORETYPE": kernel, "OPENBLAS_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode < 0:
            pytest.skip(f"this processor does not run the kernel {kernel}")
        own, used, step = done.stdout.split()
        planned.append(own)
        begun.append(used)
        assert step == str(len(begun)), done.stderr
    assert begun == [planned[0]] * len(begun)
