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
#: Errors, noise of a step, and batch sizes are alike where they differ by this at most.
ALIKE = 0.02
#: More memory is mentioned where it gains at least this, and as much of it as gives this part of all gain.
_WORTH, _NEARLY_ALL = 0.03, 0.9


#: Another choice than that of least error, why it is that, and what is said of the others.
Instead = tuple[PlanRow, str, str]


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


def rows_of(found: list[Score], goal: Goal, room: MemoryBudget) -> list[PlanRow]:
    """Rows of one setting: every candidate that may be the best within the room, and some to compare with.

    The best row is the best of all candidates within the room: one is left out only where the least that
    calibration may give it is above the best one found. Of each kind one with about the least error of all
    and less noise state is there too.
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
        if one.least <= best and _may_win(one, goal, best):
            best = min(best, row(one).predicted)
    cheap = [one for one in within if not one.candidate.costly]
    alike = [one for one in cheap if one.expected <= (1 + ALIKE) * best]
    kinds = {one.kind: one for one in sorted(cheap, key=lambda one: -one.expected)}
    small = {one.kind: one for one in sorted(alike, key=lambda one: (-one.history, -one.expected))}
    for one in (*kinds.values(), *small.values(), *_frontier(cheap)):
        row(one, compared=one.expected > (1 + ALIKE) * best)
    return list(made.values())


def _may_win(one: Score, goal: Goal, needed: float) -> bool:
    """Whether a candidate may have at most such an error, where to know it exactly takes long."""
    candidate, wanted = one.candidate, needed * one.candidate.sampling.expected_batch_size / one.rms
    if not candidate.costly or (candidate.enough is not None and candidate.enough <= wanted):
        return True
    return may_keep_goal(candidate.sampling, candidate, goal, wanted)


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


def choose(
    rows: list[PlanRow], notes: list[str], *, drawn: PlanRow | None = None, instead: Instead | None = None
) -> Plan:
    """The row of `least_error`, or `instead`; rows are ranked by error, over the steps where these differ.

    Args:
        drawn: DP-SGD, where batches are not drawn but might be.
        instead: another choice, why it is that, and what is said of the others.
    """
    several = len({row.mechanism.steps for row in rows}) > 1

    def value(row: PlanRow) -> float:
        return row.relative if several else row.predicted

    ranked = sorted(rows, key=lambda row: (value(row), row.history))
    best = least_error(ranked) if instead is None else instead[0]
    drawn = None if best.mechanism.amplified else drawn
    described = best.mechanism.sampling.describe(best.mechanism.unit)
    why = "it has the least predicted error" + " over the steps" * several
    compared = _against_independent(best, ranked)
    if instead is not None:
        _, why, compared = instead
    elif best is not ranked[0]:
        why = "of what has about the least predicted error it has the least noise in a step, or noise state"
    reason = [
        outlook(best, ranked, drawn),
        f"Chosen: {best.name} with {described}; {why}.",
        noise_state(best),
        compared,
        *notes,
    ]
    least = float("inf")
    frontier = set()
    for row in sorted(ranked, key=lambda row: (row.history, value(row))):
        if value(row) < least:
            least = value(row)
            frontier.add(id(row))
    final = tuple(replace(row, chosen=row is best, frontier=id(row) in frontier) for row in ranked)
    return Plan(final, best.mechanism, " ".join(note for note in reason if note), drawn=drawn)


def least_error(rows: list[PlanRow]) -> PlanRow:
    """Of rows one of the least error, to within `ALIKE`.

    Of these the one of least noise in a step, again to within that; of these one whose batches are drawn,
    where that is permitted, since a fixed order is another promise; then that of the least noise state.
    """
    first = min(rows, key=lambda row: row.relative)
    most = (1 + ALIKE) * first.predicted
    near = [row for row in rows if row.predicted <= most and _same_run(first, row)]
    loudest = (1 + ALIKE) * min(row.step_noise for row in near)
    quiet = [row for row in near if row.step_noise <= loudest]
    return min(quiet, key=lambda row: (not row.mechanism.amplified, row.history, row.predicted))


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

#: Errors over those of independent noise above which hardly anything is gained.
WORTH = 0.9


def unnoticed_noise(rows: list[PlanRow], update: UpdateRule, dimension: int | None) -> Instead | None:
    """Independent noise of which momentum's whole run adds less to the model than half a clipped gradient.

    Such a run is not limited by noise but by its rate, and at the largest rates models did worse with less
    noise, and without any (measured on flights). None where there is more, or no momentum.
    """
    least = independent(rows)
    if least is None or update.kind != "sgd" or not update.momentum or dimension is None:
        return None
    if least.predicted * math.sqrt(dimension) >= UNNOTICED * update.gain:
        return None
    best, less = min(rows, key=lambda row: row.relative), ""
    if best is not least:
        less = (
            f" {best.name} ({best.sampling}) has {best.predicted / least.predicted:.3g} times the predicted"
            f" error: name it ({family(best.mechanism.strategy)!r}) where rates are small."
        )
    said = (
        "The noise of the whole run adds less to the model than half a clipped gradient, so that the rate is"
        f" what limits it, and at large rates momentum did worse with less noise.{less}"
    )
    return least, "its noise does not limit the run", said


def independent(rows: list[PlanRow]) -> PlanRow | None:
    """The row of independent noise of the least error, if any."""
    plain = [row for row in rows if family(row.mechanism.strategy) == "identity"]
    return min(plain, key=lambda row: row.relative, default=None)


def outlook(best: PlanRow, rows: list[PlanRow], drawn: PlanRow | None = None) -> str:
    """What a user may expect of the choice, beside independent noise of `rows`, and DP-SGD if `drawn`."""
    free = best.mechanism.amplified or best.mechanism.sampling.formed_outside
    order = "" if free else " It needs the batches in one fixed order."
    plain = _independent(best, rows)
    if family(best.mechanism.strategy) == "identity":
        return f"Expect about what {_plain_name(best)} gives: that is what this is.{_permission(best, drawn)}"
    if not plain:
        return f"{order}{_permission(best, drawn)}".strip()
    ratio = best.predicted / plain[0].predicted
    less = f"{1 - ratio:.0%} less noise in the iterates than with independent noise"
    if ratio > WORTH:
        return f"Expect about what {_plain_name(plain[0])} gives: {less}.{order}{_permission(best, drawn)}"
    if best.mechanism.amplified:
        return (
            f"Expect as much as {_plain_name(plain[0])} gives, or more: {less}. Where batches are drawn at"
            " random that was worth 0 to 4 points of accuracy on small models."
        )
    kept = "" if drawn is None or best.predicted <= WORTH * drawn.predicted else " where the order is kept"
    return f"Worth it{kept}: {less}.{order}{_permission(best, drawn)}"


def _permission(best: PlanRow, drawn: PlanRow | None) -> str:
    """What DP-SGD would have in the place of a choice in a fixed order."""
    if drawn is None:
        return ""
    ratio = drawn.predicted / best.predicted
    return (
        f" DP-SGD, if these batches might be drawn in secret (Poisson), would have {ratio:.3g} times its"
        f" error{'.' if ratio >= 1 / WORTH else ': where they may be, permit it (poisson_sampling=True).'}"
    )


def _plain_name(row: PlanRow) -> str:
    """Return the name of independent noise with the batches of a row: DP-SGD has Poisson sampling."""
    drawn = "DP-SGD" if row.sampling == "Poisson" else "independent noise with batches drawn at random"
    return drawn if row.mechanism.amplified else "independent noise in the same order"


def _independent(best: PlanRow, rows: list[PlanRow]) -> list[PlanRow]:
    """Rows of independent noise with the steps of the choice and about its batches, the best one first."""
    return [row for row in _of_its_batches(best, rows) if family(row.mechanism.strategy) == "identity"]


def _of_its_batches(best: PlanRow, rows: list[PlanRow]) -> list[PlanRow]:
    """Rows with the steps of one of them and about its batches."""
    alike = [row for row in rows if abs(row.batch_size / best.batch_size - 1) <= ALIKE]
    return [row for row in alike if row.mechanism.steps == best.mechanism.steps]


def _same_run(one: PlanRow, other: PlanRow) -> bool:
    """Whether two rows have the same steps, and about the same batches or as many steps a pass.

    Where N is no multiple of B, random allocation and bins divide by N / period < B, with which a pass moves
    the model as far as a pass of whole batches or further: their error is not too small beside the others.
    """
    passes = [getattr(row.mechanism.sampling, "period", None) for row in (one, other)]
    together = passes[0] is not None and passes[0] == passes[1]
    return bool(_of_its_batches(one, [other])) or (together and one.mechanism.steps == other.mechanism.steps)


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
