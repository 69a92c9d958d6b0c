"""Choice among candidates: rows of the table, the best of them, and the reason."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from anechoic.planning.calibration import calibrate_candidate, may_keep_goal, row_of
from anechoic.planning.families import family, label
from anechoic.planning.memory_budget import BYTES, MemoryBudget, nanoseconds, nanoseconds_regenerated
from anechoic.planning.records import Candidate, Goal, PlanRow
from anechoic.planning.result import Plan
from anechoic.planning.run_shape import RunShape
from anechoic.planning.update import UpdateRule
from anechoic.statement.rounding import size

#: A row with less noise state is shown unless its predicted error is within this of one with even less.
_STEP = 0.03
#: Batches of random allocation, N / period, are those of another scheme where they differ by this at most.
_ALIKE = 0.02
#: More memory is mentioned where it gains at least this, and as much of it as gives this part of all gain.
_WORTH, _NEARLY_ALL = 0.03, 0.9


@dataclass(frozen=True)
class Score:
    """A candidate with about its predicted error, before it is calibrated."""

    candidate: Candidate
    setting: RunShape
    rms: float
    history: int

    @property
    def expected(self) -> float:
        """About the predicted error that its row will have."""
        return self.candidate.expected * self.rms / self.candidate.sampling.expected_batch_size

    @property
    def least(self) -> float:
        """The least predicted error that its row may have."""
        return self.candidate.hope * self.expected

    @property
    def kind(self) -> tuple[str, str]:
        """Family of the strategy and scheme of the batches: one row of each is shown."""
        return family(self.candidate.strategy), type(self.candidate.sampling).__name__


def score_candidates(setting: RunShape, candidates: Iterable[Candidate], room: MemoryBudget) -> list[Score]:
    """Candidates of a setting with their errors."""
    return [
        Score(one, setting, setting.designs.of(one.strategy), room.storage(one.strategy.recurrence())[1])
        for one in candidates
    ]


def rows_of(found: list[Score], goal: Goal, room: MemoryBudget, *, quiet: bool = False) -> list[PlanRow]:
    """Rows of one setting: every candidate that may be the best within the room, and some to compare with.

    Where `quiet`, the choice may be any of them.

    The best row is the best of all candidates within the room: one is left out only where the least that
    calibration may give it is above the best one found.
    """
    made: dict[int, PlanRow] = {}

    def row(one: Score, compared: bool = False) -> PlanRow:
        if id(one) not in made:
            mechanism = calibrate_candidate(one.candidate, goal, compared=compared)
            made[id(one)] = row_of(mechanism, one.setting.designs, room)
        return made[id(one)]

    within = sorted((one for one in found if room.fits(one.history)), key=lambda one: one.least)
    best = float("inf")
    for one in sorted(within, key=lambda one: (one.candidate.costly, one.least)):
        if one.least > best:
            continue
        wanted = best * one.candidate.sampling.expected_batch_size / one.rms  # the noise std that wins
        if (
            one.candidate.costly
            and best < float("inf")
            and not may_keep_goal(one.candidate.sampling, one.candidate, goal, wanted)
        ):
            continue
        best = min(best, row(one).predicted)
    cheap = [one for one in within if not one.candidate.costly]
    for one in {one.kind: one for one in sorted(cheap, key=lambda one: -one.expected)}.values():
        row(one, compared=not quiet)
    for one in _frontier(cheap):
        row(one, compared=not quiet)
    return list(made.values())


def _frontier(found: list[Score]) -> list[Score]:
    """Those with a smaller error than all with less noise state, by more than some per cent."""
    result: list[Score] = []
    for one in sorted(found, key=lambda one: (one.history, one.expected)):
        if not result or one.expected < (1 - _STEP) * result[-1].expected:
            if result and result[-1].history == one.history:
                continue
            result.append(one)
    return result


def more_memory(found: list[Score], room: MemoryBudget, best: PlanRow) -> str:
    """The least memory that gives nearly all that more would, by the estimates; "" where that is nothing."""
    steps = best.mechanism.steps
    beyond = [one for one in found if not room.fits(one.history) and one.setting.fixed.steps == steps]
    least = min((one.expected for one in beyond), default=float("inf"))
    if least > (1 - _WORTH) * best.predicted:
        return ""
    enough = best.predicted - _NEARLY_ALL * (best.predicted - least)
    gain = min((one for one in beyond if one.expected <= enough), key=lambda one: (one.history, one.expected))
    memory = room.memory(gain.history)
    needed = f"{gain.history} rows" if memory is None else f"memory_budget={memory} ({size(memory)})"
    return (
        f"With {needed}, {label(gain.candidate.strategy)} would have at least about"
        f" {1 - gain.expected / best.predicted:.0%} less error."
    )


def unnoticed_noise(rows: list[PlanRow], update: UpdateRule, dimension: int | None) -> PlanRow | None:
    """Independent noise of which momentum's whole run adds less to the model than half a clipped gradient.

    Such a run is not limited by noise but by its rate, and at the largest rates models did worse with less
    noise, and without any (docs/measured.md, on flights). None where there is more, or no momentum.
    """
    plain = [row for row in rows if family(row.mechanism.strategy) == "identity"]
    if not plain or update.kind != "sgd" or not update.momentum or dimension is None:
        return None
    least = min(plain, key=lambda row: row.relative)
    return least if least.predicted * math.sqrt(dimension) < UNNOTICED * update.gain else None


def choose(
    rows: list[PlanRow], notes: list[str], *, quiet: bool = False, instead: PlanRow | None = None
) -> Plan:
    """The row of least predicted error; of equal ones that of least memory. Rows are ranked by that error.

    Where `quiet`, the row of least noise in a single step is chosen from the same ranking; `instead` that of
    `unnoticed_noise`.

    Runs of different length are compared by the error over the number of steps.
    """
    several = len({row.mechanism.steps for row in rows}) > 1

    def value(row: PlanRow) -> float:
        return row.relative if several else row.predicted

    ranked = sorted(rows, key=lambda row: (value(row), row.history))
    best = instead or (min(ranked, key=lambda row: row.step_noise) if quiet else ranked[0])
    described = best.mechanism.sampling.describe(best.mechanism.unit)
    why = "it has the least predicted error over the steps" if several else "it has the least predicted error"
    compared = [_against_independent(best, ranked), _against_other_schemes(best, ranked)]
    if instead is not None:
        why, compared = "its noise does not limit the run", [_for_the_rate(best, ranked[0])]
    elif quiet:
        why, compared = "it has the least noise in a single step", [_for_adam(best, ranked[0])]
    reason = [
        outlook(best, ranked),
        f"Chosen: {best.name} with {described}; {why}.",
        noise_state(best),
        *compared,
        *notes,
    ]
    least = float("inf")
    frontier = set()
    for row in sorted(ranked, key=lambda row: (row.history, value(row))):
        if value(row) < least:
            least = value(row)
            frontier.add(id(row))
    final = tuple(replace(row, chosen=row is best, frontier=id(row) in frontier) for row in ranked)
    return Plan(final, best.mechanism, " ".join(note for note in reason if note))


def noise_state(best: PlanRow) -> str:
    """How much noise state the choice holds, against the model in float32."""
    recurrence = best.mechanism.strategy.recurrence()
    slower = (nanoseconds_regenerated(recurrence) or 0.0) / nanoseconds(recurrence)
    if best.noise_storage == "regenerate":
        return f"It keeps no noise state: rows are made again in each step, in {slower:.1f} times the time."
    if best.memory is None or best.history == 0:
        return ""
    models = best.history * best.number_bytes // BYTES
    said = f"Its noise state is {size(best.memory)}, {models} times the model (float{8 * best.number_bytes})."
    if not slower:
        return said
    return f"{said} With memory='regenerate' a stream keeps none of it, and takes {slower:.1f} times as long."


#: Clipped gradients that the noise of a whole run may weigh where momentum does not profit from less.
UNNOTICED = 0.5

#: Gains in predicted error above which Adam's users are not sent to other noise.
WORTH = 0.9


def _for_adam(best: PlanRow, least: PlanRow) -> str:
    """What an optimiser that divides by the noise of a step would have to do for the least error of sums."""
    if least is best:
        return "It has the least predicted error too."
    ratio, gain = least.step_noise / best.step_noise, best.predicted / least.predicted
    if least.predicted > WORTH * best.predicted:
        return (
            f"{least.name} ({least.sampling}) has {least.predicted / best.predicted:.3g} times the predicted"
            f" error, but {ratio:.3g} times the noise in a step, by which Adam divides: hardly worth it."
        )
    return (
        "Adam divides by the noise of a step, so that with more of it the same learning rate is too small."
        f" {least.name} ({least.sampling}) has {least.predicted / best.predicted:.3g} times the predicted"
        f" error and {ratio:.3g} times the noise in a step: take it with anechoic.torch.CorrectedAdam at 1 to"
        f" {gain:.2g} times the learning rate, or name it ({family(least.mechanism.strategy)!r}) and try"
        f" rates {ratio:.2g} to {ratio * gain:.2g} times as large."
    )


def _for_the_rate(best: PlanRow, least: PlanRow) -> str:
    """Why less noise than what is hardly noticed was not taken."""
    less = ""
    if least is not best:
        less = (
            f" {least.name} ({least.sampling}) has {least.predicted / best.predicted:.3g} times the predicted"
            f" error: name it ({family(least.mechanism.strategy)!r}) where rates are small."
        )
    return (
        "The noise of the whole run adds less to the model than half a clipped gradient, so that the rate is"
        f" what limits it, and at large rates momentum did worse with less noise (docs/choosing.md).{less}"
    )


def outlook(best: PlanRow, rows: list[PlanRow]) -> str:
    """What a user may expect of the choice beside independent noise, from what was compared."""
    if family(best.mechanism.strategy) == "identity":
        return f"Expect about what {_plain_name(best)} gives: that is what this is."
    free = best.mechanism.amplified or best.mechanism.sampling.formed_outside
    order = "" if free else " It needs the batches in one fixed order."
    plain = _independent(best, rows)
    if not plain:
        return order.strip()
    ratio = best.predicted / plain[0].predicted
    less = f"{1 - ratio:.0%} less noise in the iterates than with independent noise"
    if ratio > WORTH:
        return f"Expect about what {_plain_name(plain[0])} gives: {less}.{order}"
    if best.mechanism.amplified:
        return (
            f"Expect about what {_plain_name(plain[0])} gives: {less}, but where batches are drawn at random"
            " that moved the accuracy of models by -1 to +2 points only (docs/choosing.md)."
        )
    return f"Worth it for SGD and momentum: {less}.{order}"


def _plain_name(row: PlanRow) -> str:
    """Return the name of independent noise with the batches of a row: DP-SGD has Poisson sampling."""
    drawn = "DP-SGD" if row.sampling == "Poisson" else "independent noise with batches drawn at random"
    return drawn if row.mechanism.amplified else "independent noise in the same order"


def _independent(best: PlanRow, rows: list[PlanRow]) -> list[PlanRow]:
    """Rows of independent noise with the steps of the choice and about its batches, the best one first."""
    plain = [row for row in rows if family(row.mechanism.strategy) == "identity"]
    alike = [row for row in plain if abs(row.batch_size / best.batch_size - 1) <= _ALIKE]
    return [row for row in alike if row.mechanism.steps == best.mechanism.steps]


def _against_independent(best: PlanRow, rows: list[PlanRow]) -> str:
    plain = _independent(best, rows)
    if plain and plain[0] is not best:
        ratio = best.predicted / plain[0].predicted
        step = best.step_noise / plain[0].step_noise
        return (
            f"Its predicted error is {ratio:.3g} times that of independent noise ({plain[0].sampling}), and"
            f" the noise of a single step {step:.3g} times."
        )
    compared = any(family(row.mechanism.strategy) != "identity" for row in rows)
    if compared and best.mechanism.amplified and plain:
        return "Correlating noise does not help here: sampling already gives what there is to gain."
    return ""


def _against_other_schemes(best: PlanRow, rows: list[PlanRow]) -> str:
    others: dict[str, PlanRow] = {}
    for row in rows:
        correlated = family(row.mechanism.strategy) != "identity"
        alike = row.batch_size == best.batch_size and row.mechanism.steps == best.mechanism.steps
        if row.sampling != best.sampling and correlated and alike:
            others.setdefault(row.sampling, row)
    return " ".join(
        f"That is {best.predicted / row.predicted:.3g} times the least error of {scheme} ({row.name})."
        for scheme, row in others.items()
    )
