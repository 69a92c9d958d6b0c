"""The guarantee of a run of private FTRL is that of its mechanism: what its iterates show to the audit."""

import numpy as np
import pytest

import anechoic as an
from anechoic import audit, theory
from anechoic.strategies import BandedToeplitz, Toeplitz

STEPS, CANARIES, OTHERS = 9, 200, 3


def mechanism(strategy, noise_multiplier=1.5):
    order = an.sampling.External(an.participation.Cyclic(4), 1, steps=STEPS)
    return an.calibrate(
        strategy, sampling=order, noise_multiplier=noise_multiplier, delta=1e-3, clip_norm=2.0
    )


def observed(made, seed):
    """Canaries on coordinates of their own in steps 0, 4, 8, seen through the iterates of a run.

    Beside them gradients of other units follow the iterate. With all space and a constant rate eta,
    w_{t+1} is -eta times the noisy prefix sum, so that differences of iterates give the releases back.
    """
    rng, eta = np.random.default_rng(seed), 0.1
    put_in = np.where(rng.permutation(CANARIES) < CANARIES // 2, 1.0, 0.0)
    part = np.zeros((STEPS, CANARIES), bool)
    part[::4] = True
    width = CANARIES + OTHERS

    def gradients(t, w):
        follow = np.concatenate([np.zeros(CANARIES), np.sign(w[CANARIES:] - 1.0)])
        canaries = 50.0 * np.eye(CANARIES, width)[part[t] & (put_in > 0)]  # clipped to norm 2
        return np.vstack([follow, canaries])

    run = theory.PrivateFTRL(made, rate=eta).run(gradients, dimension=width, key=bytes([seed]) * 32)
    rows = -np.diff(run.iterates, axis=0) / eta * made.expected_batch_size / made.clip_norm
    return audit.Observation(rows[:, :CANARIES], part, put_in)


@pytest.mark.parametrize("strategy", [Toeplitz.damped(STEPS, 0.1), BandedToeplitz(STEPS, [1.0, 0.6, 0.2])])
def test_the_guarantee_of_a_run_is_that_of_its_mechanism(strategy):
    claimed = mechanism(strategy)
    report = audit.audit(claimed, observed(claimed, 1))
    assert not report.violated
    # canaries count in full: with two thirds of the noise the same claim is refuted
    weaker = mechanism(strategy, noise_multiplier=1.0)
    assert audit.audit(claimed, observed(weaker, 1)).violated
