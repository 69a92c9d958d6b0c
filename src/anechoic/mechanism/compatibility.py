"""Checks that a theorem covers what is asked for, before anything is computed."""

from __future__ import annotations

from typing import Any

from anechoic._validate import one_of
from anechoic.accounting import Verified
from anechoic.accounting.accountant import Accounting, accountant_of
from anechoic.errors import UnsupportedError
from anechoic.sampling.base import Sampling
from anechoic.strategies.base import Strategy
from anechoic.workloads.base import Workload


def check_strategy(strategy: Any) -> None:
    """Refuse what is no strategy.

    Raises:
        ValueError: naming what it is, and where its strategy is.
    """
    if isinstance(strategy, Strategy):
        return
    kind = type(strategy).__name__
    if isinstance(strategy, Workload):
        remedy = "that is a workload, what is to be released; design a strategy for it with anechoic.optimize"
    elif isinstance(getattr(strategy, "strategy", None), Strategy):
        remedy = "pass its .strategy"
    else:
        remedy = "of what an optimiser returned it is .strategy"
    raise ValueError(f"strategy is a {kind}; it must be a Strategy such as strategies.Identity(n): {remedy}.")


def check_covered(
    strategy: Strategy,
    sampling: Sampling,
    adjacency: str,
    accounting: Accounting = "deterministic",
) -> None:
    """Refuse what no theorem covers.

    Raises:
        ValueError: if the parts are of the wrong kind or length.
        UnsupportedError: if they fit, but no theorem gives a guarantee.
    """
    check_strategy(strategy)
    if not isinstance(sampling, Sampling):
        raise ValueError(
            f"sampling={sampling!r} must be a Sampling, such as sampling.FixedOrder(...); a participation"
            " goes into sampling.External(participation, batch_size, steps)."
        )
    one_of("adjacency", adjacency, ("zero_out", "replace_one", "add_or_remove"))
    steps = sampling.steps
    if strategy.n != steps:
        raise ValueError(f"strategy has n={strategy.n} steps but sampling has {steps}: build both for one n.")
    if accounting != "deterministic" and not isinstance(accounting, Verified):
        raise ValueError(f"accounting={accounting!r} must be 'deterministic', 'verified', or a Verified.")
    accountant_of(sampling, strategy, adjacency, accounting)
    if adjacency == "add_or_remove" and sampling.moves_others:
        raise UnsupportedError(
            f"adjacency='add_or_remove' under {type(sampling).__name__}: removing a record would move others"
            " to other batches. Use 'zero_out' or 'replace_one', Poisson sampling, or CyclicPoisson with"
            " grouping='independent'."
        )
