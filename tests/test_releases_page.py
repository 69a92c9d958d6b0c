"""docs/releases.md, run as it stands: releases of NumPy sums, without torch."""

import re
from pathlib import Path

import numpy as np
import pytest

import anechoic as an
from anechoic.runs.journal import read_journal

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "releases.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.mark.slow
def test_the_page_releases_running_totals(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert len(BLOCKS) == 2
    scope = {}
    for block in BLOCKS:
        exec(block, scope)
    printed = capsys.readouterr().out
    assert "Privacy unit:     one user" in printed and "promised of each user" in " ".join(printed.split())
    mech, error = scope["mech"], scope["error"]
    assert mech.epsilon() <= 1 and f"at most {error:.1f}" in printed
    book = read_journal(tmp_path / "counts.journal")
    assert (book.first, book.end, book.fingerprint) == (0, 60, mech.fingerprint)
    # the same users and days once more, without noise
    rng, sums = np.random.default_rng(0), np.zeros(20)
    for _ in range(60):
        sums += sum(
            mech.grid.release(mech.grid.to_grid(one), np.zeros(20, int)) for one in rng.poisson(1.0, (50, 20))
        )
    off = scope["running"] - sums
    assert 0 < np.abs(off).max() < 6 * error


def test_each_participation_of_the_page_is_one():
    names = re.findall(r"`(\w+)\([^`]*\)`", PAGE.split("|---|---|")[1].split("\n\n")[0])
    assert sorted(names) == ["Cyclic", "FullBatch", "MinSep", "OncePerEpoch", "Single"]
    assert all(hasattr(an.participation, name) for name in names)


def test_calibrate_without_sampling_says_what_to_give():
    strategy = an.strategies.Identity(4)
    with pytest.raises(ValueError, match=r"sampling is missing.*External\(participation\.Single\(\)"):
        an.calibrate(strategy, epsilon=1.0, delta=1e-6)
    with pytest.raises(ValueError, match=r"goes into sampling\.External"):
        an.calibrate(strategy, sampling=an.participation.Single(), epsilon=1.0, delta=1e-6)
    with pytest.raises(ValueError, match=r"\.strategy"):
        found = an.optimize.banded_toeplitz(an.workloads.prefix_sum(4), bands=2)
        an.calibrate(found, sampling=an.sampling.FixedOrder(4, 2, steps=4), epsilon=1.0, delta=1e-6)


@pytest.mark.parametrize("grid_bits", [None, 20])
def test_a_mechanism_s_stream_has_the_clip_norm_and_a_strategy_s_has_not(grid_bits):
    sampling = an.sampling.External(an.participation.Single(), batch_size=1, steps=3)
    mech = an.Mechanism(an.strategies.Identity(3), sampling, 2.0, clip_norm=4.0, grid_bits=grid_bits)
    key = bytes(32)
    ours, _ = (stream := mech.stream(50, key=key)).next(stream.init())
    plain, _ = (stream := mech.strategy.stream(dimension=50, std=mech.noise_std, key=key)).next(stream.init())
    inside = ours if grid_bits is None else mech.grid.release(np.zeros(50, int), ours)
    np.testing.assert_allclose(inside, 4.0 * plain, rtol=1e-6, atol=4.0 * 2.0**-20)
