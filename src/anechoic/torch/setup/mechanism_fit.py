"""Check that loader, arguments and mechanism fit; read what a mechanism is planned from."""

from __future__ import annotations

import logging
import math
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler

from anechoic._validate import positive_int
from anechoic.errors import MismatchError, UnsupportedError
from anechoic.mechanism.mechanism import Mechanism
from anechoic.sampling import BallsInBins, FixedOrder, RandomAllocation
from anechoic.sampling.base import Sampling
from anechoic.torch.setup.arguments import Setup

logger = logging.getLogger("anechoic")
#: Steps of a run that nobody limits: more than any is trained for.
OPEN_STEPS = 10**6


def is_open(setup: Setup) -> bool:
    """Whether a run may stop after any step, as Opacus's do; a warning then says what it has and lacks.

    Independent noise under Poisson sampling has one law in every step, however many follow.
    """
    given = setup.noise_multiplier is not None and setup.epochs is None and setup.steps is None
    sampled = setup.poisson_sampling and setup.participation is None
    if not (given and sampled and setup.mechanism in ("auto", "identity")):
        return False
    logger.warning(
        "epochs= is not given, so noise is independent (mechanism='identity') and the run may stop after any"
        " step: engine.get_epsilon(delta) is that of the steps made. With epochs= (or steps=) noise is"
        " planned for the whole run, which takes less of it for the same epsilon."
    )
    return True


def is_shuffled(loader: DataLoader[Any]) -> bool:
    """Whether the loader's sampler is a RandomSampler; refuse any but that and a SequentialSampler."""
    sampler, size = loader.sampler, len(loader.dataset)  # type: ignore[arg-type]
    own = ""
    if type(loader.batch_sampler) is not BatchSampler:
        own = f"forms batches by its own {type(loader.batch_sampler).__name__}"
    elif type(sampler) is SequentialSampler:
        return False
    elif type(sampler) is not RandomSampler:
        own = f"draws examples by {type(sampler).__name__}"
    elif sampler.replacement or sampler.num_samples != size:
        drawn = f"replacement={sampler.replacement}, num_samples={sampler.num_samples}"
        own = f"draws examples by RandomSampler with {drawn}"
    if own:
        raise UnsupportedError(
            f"data_loader {own}, which would be replaced. Use shuffle=True or shuffle=False, and"
            " Subset(dataset, indices) for a part of the data; or, where these batches promise how often a"
            " unit takes part, participation=…, or a Mechanism with External sampling."
        )
    return True


def planned_steps(setup: Setup) -> int:
    """Return n, of exactly one of epochs and steps."""
    epochs, steps = setup.epochs, setup.steps
    if (epochs is None) == (steps is None):
        raise ValueError(
            f"epochs={epochs}, steps={steps}: give one of the two, since noise is planned for a known number"
            " of releases: add epochs=… to this call; or pass a Mechanism."
        )
    if steps is not None:
        return positive_int("steps", steps)
    return positive_int("epochs", epochs) * positive_int(
        "len(data_loader)", setup.period, remedy="It has no batch."
    )


REMEDY = "Calibrate the mechanism for this run, or set up the run that it was calibrated for"


def check_fit(setup: Setup, mechanism: Mechanism) -> None:
    """Refuse a Mechanism that was made for something else; None stands for what it says."""
    units, examples, sampling = setup.units, setup.count, mechanism.sampling
    epochs, given = setup.epochs, sampling.formed_outside
    if units is not None and not given and sampling.examples != examples:
        raise MismatchError(
            f"unit_ids name {examples} units, the mechanism's sampling has examples={sampling.examples}, and"
            f" it counts units ({mechanism.unit!r}). {REMEDY}."
        )
    if sampling.examples not in (None, examples, units.count if units is not None and given else None):
        raise MismatchError(
            f"the data set has {examples} examples, the mechanism's sampling {sampling.examples}. {REMEDY}."
        )
    loader, period, batches = setup.data_loader, setup.period, getattr(sampling, "period", None)
    by_number = isinstance(sampling, (BallsInBins, RandomAllocation))  # of batches their size follows
    if not by_number and loader.batch_size not in (None, sampling.expected_batch_size):
        raise MismatchError(
            f"data_loader.batch_size={loader.batch_size}, the mechanism's is {sampling.expected_batch_size}."
            f" {REMEDY}."
        )
    if (by_number or isinstance(sampling, FixedOrder)) and period != batches:
        raise MismatchError(
            f"data_loader has {period} batches a pass, the mechanism {batches} (drop_last="
            f"{getattr(sampling, 'drop_last', 'any')}). Give the loader a batch_size and drop_last that fit;"
            f" or: {REMEDY.lower()}."
        )
    if not setup.poisson_sampling and mechanism.amplified:
        raise MismatchError(
            f"poisson_sampling=False, but the mechanism's guarantee rests on {type(sampling).__name__}"
            " sampling. Leave it True, or calibrate a mechanism for FixedOrder."
        )
    pairs: list[tuple[str, Any, Any]] = [
        ("max_grad_norm", setup.clip_norm, mechanism.clip_norm),
        ("noise_multiplier", setup.noise_multiplier, mechanism.noise_multiplier),
        ("adjacency", setup.adjacency, mechanism.adjacency),
        ("unit", setup.unit, mechanism.unit),
        ("participation", setup.participation, mechanism.participation),
        ("steps", setup.steps, mechanism.steps),
        ("epochs * len(data_loader)", None if epochs is None else epochs * setup.period, mechanism.steps),
    ]
    for name, asked, own in pairs:
        if name == "max_grad_norm" and asked and math.isclose(asked, own):
            continue  # of several norms it is rounded
        if asked is not None and asked != own:
            raise MismatchError(
                f"{name}={asked!r}, the mechanism's is {own!r}. Leave it out, or: {REMEDY.lower()}."
            )
    if setup.target_epsilon is not None and setup.target_delta is not None:
        spent = mechanism.epsilon(setup.target_delta)
        if not spent <= setup.target_epsilon or math.isnan(setup.target_epsilon):
            raise MismatchError(
                f"target_epsilon={setup.target_epsilon} at target_delta={setup.target_delta}, but the"
                f" mechanism has epsilon={spent:.6g} there: calibrate one for the target."
            )


def loader_options(sampling: Sampling) -> dict[str, Any]:
    """Return arguments of a DataLoader that `check_fit` passes, where the library forms the batches."""
    if isinstance(sampling, FixedOrder):
        return {"batch_size": sampling.batch_size, "drop_last": sampling.drop_last, "shuffle": True}
    if not isinstance(sampling, (BallsInBins, RandomAllocation)):
        return {"batch_size": max(1, round(sampling.expected_batch_size)), "shuffle": True}
    fitting = fitting_batch(sampling.examples, sampling.period)
    if fitting is None:
        raise UnsupportedError(
            f"no loader goes through {sampling.examples} units in {sampling.period} batches of one size. Take"
            " another number of bins, or audit the noise (audit_mechanism)."
        )
    return {"batch_size": fitting[0], "drop_last": fitting[1], "shuffle": True}


def fitting_batch(count: int, period: int) -> tuple[int, bool] | None:
    """Return (batch_size, drop_last) of a loader with `period` batches of `count` things; None for none.

    drop_last is False where that is possible.
    """
    size = -(-count // period)  # the smallest that makes at most `period` batches
    if -(-count // size) == period:
        return size, False
    size = count // period  # the largest that fills at least `period`
    return (size, True) if size and count // size == period else None
