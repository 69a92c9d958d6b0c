"""The pictures of a mechanism: their numbers are its own, and epsilon is never drawn too low."""

import numpy as np
import pytest

from anechoic.mechanism.calibrate import calibrate
from anechoic.plots.mechanism import epsilon_stairs, independent_std
from anechoic.sampling import FixedOrder, Poisson
from anechoic.strategies import BandedToeplitz, Identity
from anechoic.workloads import prefix_sum

pytest.importorskip("matplotlib")
ORDER = FixedOrder(examples=60, batch_size=10, epochs=8)
WAYS = {"epsilon": 2.0, "delta": 1e-5}


def banded(sampling):
    return calibrate(BandedToeplitz.square_root(prefix_sum(sampling.steps), 4), sampling=sampling, **WAYS)


@pytest.mark.parametrize("sampling", [ORDER, Poisson(examples=60, batch_size=10, steps=48)])
def test_independent_noise_beside_it_has_the_same_epsilon(sampling):
    strategy = BandedToeplitz.square_root(prefix_sum(48), 4) if sampling is ORDER else Identity(48)
    mechanism = calibrate(strategy, sampling=sampling, **WAYS)
    plain = calibrate(Identity(48), sampling=sampling, **WAYS)
    assert independent_std(mechanism) == pytest.approx(plain.noise_std, rel=3e-4)


@pytest.mark.parametrize("releases", [None, 0, 13, 48])
def test_the_stairs_never_lie_below_epsilon(releases):
    mechanism = banded(ORDER)
    steps, epsilons = epsilon_stairs(mechanism, releases)
    assert steps[0] == 0 and steps[-1] == 48
    assert epsilons[-1] == pytest.approx(mechanism.epsilon(), rel=1e-12)
    assert np.all(np.diff(steps) >= 0) and np.all(np.diff(epsilons) >= 0)
    for k in range(1, 49):
        drawn = np.interp(k - 1e-9, steps, epsilons)  # just before the corner
        assert drawn >= mechanism.epsilon(steps=k)


def test_a_plot_has_the_noise_of_the_mechanism_and_marks_what_was_released():
    mechanism = banded(ORDER)
    figure = mechanism.plot(releases=13)
    noise, account = figure.axes
    ours, plain = noise.get_lines()
    inverse = np.linalg.inv(mechanism.strategy.to_dense())
    summed = np.linalg.norm(np.cumsum(inverse, axis=0), axis=1) * mechanism.noise_std
    assert ours.get_ydata() == pytest.approx(summed)
    assert plain.get_ydata() == pytest.approx(independent_std(mechanism) * np.sqrt(np.arange(1, 49)))
    mark = account.get_lines()[1]
    assert (mark.get_xdata()[0], mark.get_ydata()[0]) == (13, pytest.approx(mechanism.epsilon(steps=13)))
    assert "over 48 steps" in figure._repr_html_()


def test_of_independent_noise_there_is_one_line_and_no_more_releases_than_steps():
    plain = calibrate(Identity(48), sampling=ORDER, **WAYS)
    assert len(plain.plot().axes[0].get_lines()) == 1
    with pytest.raises(ValueError, match="releases=49 must lie between 0 and n=48"):
        plain.plot(releases=49)
