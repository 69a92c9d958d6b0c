"""Which loader goes with a sampling scheme: its batch size, and the number of batches in a pass."""

from __future__ import annotations

from functools import singledispatch
from typing import Any

from torch.utils.data import DataLoader

from anechoic.errors import MismatchError, UnsupportedError
from anechoic.sampling import BallsInBins, FixedOrder, RandomAllocation
from anechoic.sampling.base import Sampling

REMEDY = "Calibrate the mechanism for this run, or set up the run that it was calibrated for"


@singledispatch
def check_batching(
    sampling: Sampling, loader: DataLoader[Any], *, examples: int, period: int, what: str
) -> None:
    """Refuse a loader whose batches are not those of the scheme: here, by their size.

    Args:
        sampling: of the mechanism.
        loader: the user's.
        examples: how many there are to draw from.
        period: batches in one pass of the loader.
        what: that is drawn, in words.

    Raises:
        MismatchError: naming both values.
    """
    if loader.batch_size not in (None, sampling.expected_batch_size):
        raise MismatchError(
            f"data_loader.batch_size={loader.batch_size}, the mechanism's is {sampling.expected_batch_size}."
            f" {REMEDY}."
        )


@check_batching.register
def _(sampling: FixedOrder, loader: DataLoader[Any], *, examples: int, period: int, what: str) -> None:
    by_size = check_batching.dispatch(Sampling)
    by_size(sampling, loader, examples=examples, period=period, what=what)
    if period != sampling.period:
        raise MismatchError(
            f"data_loader has {period} batches a pass, the mechanism {sampling.period}:"
            f" drop_last={loader.drop_last} here and {sampling.drop_last} there. Give the loader"
            f" drop_last={sampling.drop_last}; or calibrate the mechanism with drop_last={loader.drop_last}."
        )


@check_batching.register(BallsInBins)
@check_batching.register(RandomAllocation)
def _(
    sampling: BallsInBins | RandomAllocation,
    loader: DataLoader[Any],
    *,
    examples: int,
    period: int,
    what: str,
) -> None:
    """By the number of batches: their size follows from it."""
    if period == sampling.period:
        return
    fitting = fitting_batch(examples, sampling.period)
    advice = f"No batch_size goes through {examples} {what} in {sampling.period} batches. {REMEDY}"
    if fitting is not None:
        advice = f"Give the loader batch_size={fitting[0]}, drop_last={fitting[1]}; or: {REMEDY.lower()}"
    raise MismatchError(
        f"data_loader has {period} batches a pass, the mechanism {sampling.period}"
        f" ({type(sampling).__name__}, whose batches hold {sampling.expected_batch_size:.6g} {what} on"
        f" average). {advice}."
    )


@singledispatch
def loader_options(sampling: Sampling) -> dict[str, Any]:
    """Arguments of a DataLoader that `check_batching` passes, for a scheme whose batches the library forms.

    Raises:
        UnsupportedError: where there is none.
    """
    return {"batch_size": max(1, round(sampling.expected_batch_size)), "shuffle": True}


@loader_options.register
def _(sampling: FixedOrder) -> dict[str, Any]:
    return {"batch_size": sampling.batch_size, "drop_last": sampling.drop_last, "shuffle": True}


@loader_options.register(BallsInBins)
@loader_options.register(RandomAllocation)
def _(sampling: BallsInBins | RandomAllocation) -> dict[str, Any]:
    fitting = fitting_batch(sampling.examples, sampling.period)
    if fitting is None:
        raise UnsupportedError(
            f"no loader goes through {sampling.examples} units in {sampling.period} batches of one"
            " size: this mechanism cannot be trained with, nor audited by training. Take another"
            " number of bins, or audit its noise (audit_mechanism)."
        )
    return {"batch_size": fitting[0], "drop_last": fitting[1], "shuffle": True}


def fitting_batch(count: int, period: int) -> tuple[int, bool] | None:
    """(batch_size, drop_last) of a loader that goes through `count` units or examples in `period` batches.

    Args:
        count, period: >= 1.

    Returns:
        With drop_last=False where that is possible; None where no batch size gives that many batches.
    """
    size = -(-count // period)  # the smallest that makes at most `period` batches
    if -(-count // size) == period:
        return size, False
    size = count // period  # the largest that fills at least `period`
    return (size, True) if size and count // size == period else None
