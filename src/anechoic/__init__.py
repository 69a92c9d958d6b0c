"""Correlated noise mechanisms for differential privacy: design, calibrate, generate, train, release.

    A = an.workloads.prefix_sum(2048)
    best = an.optimize.banded_toeplitz(A, bands=64)
    order = an.sampling.FixedOrder(examples=60_000, batch_size=469, steps=2048)
    mech = an.calibrate(best.strategy, sampling=order, epsilon=8, delta=1e-6)
    print(mech)

`anechoic.torch` trains with a mechanism (PyTorch, Opacus), `anechoic.linear` fits tables (scikit-learn),
`anechoic.streaming` releases running statistics of a stream, `anechoic.federated` and `anechoic.flower` train
on data that clients keep, `anechoic.theory` bounds what is learned. Each part is imported when it is used.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from anechoic.errors import AnechoicError

if TYPE_CHECKING:
    from anechoic import (
        accounting,
        audit,
        errors,
        extend,
        lower_bounds,
        noise,
        optimize,
        participation,
        sampling,
        strategies,
        units,
        workloads,
    )
    from anechoic import federated as federated
    from anechoic import flower as flower
    from anechoic import linear as linear
    from anechoic import streaming as streaming
    from anechoic import theory as theory
    from anechoic import torch as torch
    from anechoic.losses.dispatch import error, loss
    from anechoic.mechanism.calibrate import calibrate
    from anechoic.mechanism.composition import Composition, compose
    from anechoic.mechanism.endless import EndlessMechanism, calibrate_endless
    from anechoic.mechanism.mechanism import Mechanism
    from anechoic.planning.compare import plan
    from anechoic.selection.selection import select
    from anechoic.sensitivity.dispatch import sensitivity
    from anechoic.units.ownership import Units

__version__ = "0.1.0"

__all__ = [
    "AnechoicError",
    "Composition",
    "EndlessMechanism",
    "Mechanism",
    "Units",
    "__version__",
    "accounting",
    "audit",
    "calibrate",
    "calibrate_endless",
    "compose",
    "error",
    "errors",
    "extend",
    "loss",
    "lower_bounds",
    "noise",
    "optimize",
    "participation",
    "plan",
    "sampling",
    "select",
    "sensitivity",
    "strategies",
    "units",
    "workloads",
]


#: Rooms, which are imported when they are asked for.
_ROOMS = {
    *("accounting", "audit", "errors", "extend", "federated", "flower", "lower_bounds", "noise", "optimize"),
    *("participation", "sampling", "streaming", "strategies", "theory", "torch", "units"),
    *("budget", "functional", "linear", "workloads"),
}
#: Where other names are defined.
_HOMES = {
    "losses.dispatch": ("error", "loss"),
    "mechanism.calibrate": ("calibrate",),
    "mechanism.composition": ("Composition", "compose"),
    "mechanism.endless": ("EndlessMechanism", "calibrate_endless"),
    "mechanism.mechanism": ("Mechanism",),
    "planning.compare": ("plan",),
    "selection.selection": ("select",),
    "sensitivity.dispatch": ("sensitivity",),
    "units.ownership": ("Units",),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}


class _Package(ModuleType):
    """Keeps the name `sensitivity` for the function where Python binds the room of that name."""

    def __setattr__(self, name: str, value: Any) -> None:
        room = name == "sensitivity" and isinstance(value, ModuleType)
        super().__setattr__(name, value.dispatch.sensitivity if room else value)


sys.modules[__name__].__class__ = _Package


def __dir__() -> list[str]:
    return sorted(__all__)


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name in _ROOMS:
            return import_module(f"anechoic.{name}")
        if name in _HOME:
            found = globals()[name] = getattr(import_module(f"anechoic.{_HOME[name]}"), name)
            return found
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
