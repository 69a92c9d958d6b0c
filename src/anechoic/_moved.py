"""Names of the version before, for one version more: whoever uses one is told where it is now."""

from __future__ import annotations

import sys
import warnings
from functools import partial
from importlib import import_module
from typing import Any

#: By room and by the module where names are now: "old", or "old>new" where the name is another one; "old>" is
#: that module itself.
_MOVED = {
    "": {
        "errors": (
            "CheckpointError DesynchronizedError GuaranteeError HorizonError MismatchError"
            " PerformanceWarning ReplayError UnsupportedError"
        ),
        "extend": "Sensitivity",
        "losses.means": "lp_losses>",
        "losses.result": "StepErrors",
        "planning.records": "PlanRow",
        "planning.result": "Plan",
        "units": "check_schema find_duplicates",
    },
    "accounting": {
        "accounting.accountant": "SampledAccountant",
        "accounting.poisson.accountant": "PoissonAccountant",
        "accounting.poisson.overlapping": "OverlappingAccountant",
        "accounting.random_allocation.accountant": "RandomAllocationAccountant",
        "extend": "Accountant accountant_of",
    },
    "audit": {
        "audit.draws": "draw_test",
        "audit.observation": "score_weights",
        "audit.power": "canaries_needed",
    },
    "batches": {"extend": "Batches batches_of"},
    "extend": {
        "accounting.laws.sampled_gaussian": "sampled_gaussian_pld",
        "noise.recurrence": "StackStep",
        "extend": (
            "Hazards>ParticipationLaw counts_of>ParticipationLaw draw_units>ParticipationLaw"
            " hazards>ParticipationLaw log_ratio>ParticipationLaw"
        ),
    },
    "flower": {"flower.grid": "InProcessGrid"},
    "losses": {"": "error loss", "losses.result": "StepErrors"},
    "lower_bounds": {
        "lower_bounds.prefix_sums": (
            "logarithmic_lower_bound logarithmic_upper_bound mathias_lower_bound mathias_upper_bound"
        )
    },
    "mechanism": {
        "": "Composition EndlessMechanism Mechanism compose",
        "mechanism.moments": "MomentPairs PairedMoments calibrate_moments",
    },
    "optimize": {"optimize.full.conjecture": "conjecture_4_7"},
    "participation": {"extend": "Participation", "participation.accounts": "accounts_of"},
    "planning": {"": "plan", "planning.records": "PlanRow", "planning.result": "Plan"},
    "runs": {"runs.journal": "read_journal"},
    "sampling": {"extend": "Sampling"},
    "sensitivity": {
        "": "sensitivity",
        "extend": "Sensitivity",
        "sensitivity.dispatch": "under",
        "sensitivity.moments": "joint_sensitivity",
    },
    "strategies": {
        "algebra.generating": "approximation_error excess_bound",
        "extend": (
            "Autoregressive Buffered Recurrence SquareStrategy Stacked StateSpace Strategy"
            " Structure serializable"
        ),
        "strategies.circulant": "circulant_root",
        "strategies.constant_recurrent": "ConstantRecurrent",
        "strategies.endless": "HorizonFree",
        "strategies.mixture_root": "MixtureRoot",
        "strategies.rational": "rational_blt",
        "strategies.recursive_tree": "RecursiveTree",
        "strategies.scaled": "ColumnScaled",
        "strategies.smooth_binary": "SmoothBinary",
        "strategies.tree_aggregation": "TreeAggregation",
    },
    "streaming": {
        "streaming": (
            "CountOf>Count Dashboard>Stream DistributionOf>Distribution Estimator>Stream"
            " GroupedOf>Grouped HistogramOf>Histogram KMeansOf>OnlineKMeans"
            " LinearRegressionOf>LinearRegression MeanOf>Mean MomentsOf>Moments"
            " QuantilesOf>Quantiles SumOf>Sum"
        ),
        "streaming.mechanisms": "planned_mechanism",
        "streaming.page": "write_page",
        "streaming.release": "Release",
        "streaming.statistic": "Statistic",
    },
    "testing": {
        "testing.guarantee": "check_sensitivity",
        "testing.matrix": "check_algebra check_structure",
        "testing.noise": "check_recurrence",
    },
    "theory": {
        "theory.ftrl": "anytime_excess average_excess population_risk_orders",
        "theory.gradient_descent": (
            "RestartTerms anti_pgd_bound convex_bound gradient_norms named_factorizations"
            " nonconvex_bound pgd_bound restart_terms"
        ),
        "theory.learning": (
            "convex_risk damped_toeplitz_risk independent_noise_risk realizable_convex_risk"
            " smallest_toeplitz_risk"
        ),
        "theory.lq_noise": "ExponentialPower gaussian_clip_norm lq_epsilon",
        "theory.mirror": "optimality_gap",
        "theory.optimal": "anti_pgd_noise asymptotic_loss banded_noise damped_noise",
        "theory.problems": "MeanEstimation",
        "theory.regression": ("clipping_probability finite_time_rates half_exponential_decay theorem_d13"),
        "theory.spectra": "Spectrum",
    },
    "torch": {"torch.optimizer": "CorrelatedOptimizer"},
    "units": {"units.batch": "UnitBatch check_item_fits"},
    "workloads": {"extend": "GeneralWorkload Workload"},
}


def places(room: str) -> dict[str, tuple[str, str]]:
    """(module, name) where each old name of a room is now."""
    found = {}
    for home, names in _MOVED.get(room, {}).items():
        for old, renamed, new in (name.partition(">") for name in names.split()):
            found[old] = (f"anechoic.{home}".rstrip("."), new if renamed else old)
    return found


def moved(room: str, name: str, level: int = 2) -> Any:
    """What the old name of a room is now.

    Raises:
        AttributeError: if the room never had such a name.
    """
    whole = f"anechoic.{room}".rstrip(".")
    if name not in (known := places(room)):
        raise AttributeError(f"module {whole!r} has no attribute {name!r}")
    home, new = known[name]
    place = f"{home}.{new}".rstrip(".")
    message = f"{whole}.{name} is {place} now: the old name goes in 0.2."
    found = getattr(import_module(home), new) if new else import_module(home)  # which may ask here, too
    warnings.warn(message, DeprecationWarning, stacklevel=level)
    return found


def keep_old_names(module: str) -> None:
    """Give a room its old names, and show completion those of its `__all__` alone."""
    room = vars(sys.modules[module])
    room["__getattr__"] = partial(moved, module.removeprefix("anechoic."))
    room["__dir__"] = lambda: sorted(room.get("__all__", room))
