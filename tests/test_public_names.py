"""A snapshot of the public names: a change here is a change of the API, and belongs in the changelog."""

import pytest

import anechoic as an
import anechoic.torch

CORE = """
AnechoicError Composition EndlessMechanism Mechanism Units __version__ accounting audit calibrate calibrate_endless
compose error errors extend loss lower_bounds noise optimize participation plan sampling sensitivity strategies
units workloads
"""
STRATEGIES = """
BLT Banded BandedInverse BandedToeplitz ColumnNormalized Dense FullTree Identity Output Restarted Toeplitz
Tree endless from_factorization without_horizon
"""
TORCH = """
BatchMemoryManager CorrectedAdam CorrelatedOptimizer Delivery LocalSteps PrivacyEngine
PrivateDataLoader PseudoGradients ReleaseLedger ReleaseRecorder audit_training pseudo_gradient read_mechanism
"""


def test_public_names():
    assert sorted(an.__all__) == sorted(CORE.split())
    assert sorted(an.strategies.__all__) == sorted(STRATEGIES.split())
    assert sorted(anechoic.torch.__all__) == sorted(TORCH.split())
    for module in (an, an.strategies, anechoic.torch):
        assert all(hasattr(module, name) for name in module.__all__)


def test_tab_completion_shows_what_is_public():
    assert dir(an) == sorted(an.__all__)


def test_rooms_are_found_where_they_are_used():
    for room in ("federated", "flower", "streaming", "theory", "torch"):
        assert getattr(an, room).__name__ == f"anechoic.{room}"
    with pytest.raises(AttributeError, match="no attribute 'training'"):
        an.training


def test_rooms_of_the_promised_api():
    """The names of the design that users type; they are promised."""
    for room, names in {
        "workloads": (
            "prefix_sum momentum nesterov scheduled exponential_decay sliding_window from_coefficients"
            " from_dense restart_differences"
        ),
        "lower_bounds": "lower_bound prefix_sum_lower_bound",
        "participation": "Single Cyclic MinSep FullBatch OncePerEpoch",
        "sampling": "FixedOrder Poisson CyclicPoisson External BallsInBins MinSepSampling RandomAllocation",
        "optimize": (
            "balls_in_bins banded banded_toeplitz blt column_normalized damped dense dense_bound restarted"
            " toeplitz"
        ),
        "accounting": "gaussian_epsilon gaussian_mu poisson_epsilon poisson_noise_multiplier",
        "noise": "NoiseStream derive",
    }.items():
        module = getattr(an, room)
        assert all(hasattr(module, name) for name in names.split()), room
