"""What the statement of a selection says."""

from __future__ import annotations

from dataclasses import replace

from anechoic.mechanism.statement_text import examples_of_all, too_large
from anechoic.mechanism.theorems import SELECTION
from anechoic.selection.selection import Selection
from anechoic.statement.rounding import round_up
from anechoic.statement.statement import Statement, statement_of

_CHOICE = "choosing settings"


@statement_of.register
def _(selection: Selection) -> Statement:
    """The statement of one run, with the guarantee and the duties of the selection."""
    s, one = selection, statement_of(selection.one_run)
    epsilon = s.epsilon()
    private = "released by the score mechanism" if s.score_mechanism else "computed from public data alone"
    guarantee = f"({round_up(epsilon)}, {s.delta!r})-differential privacy of the best run, setting and score"
    rest = [item for item in one.items if item[0] not in ("Guarantee", "Delta", "Notion", "Also", "Runs")]
    items = (
        ("Guarantee", guarantee),
        *too_large(s.delta, s.one_run.unit, examples_of_all(s.one_run)),
        ("Runs", f"a secret number of them: {s.repetitions}; the best by its score alone is shown"),
        ("Score", private),
        ("Notion", "(epsilon, delta)-DP of the best of a random number of runs, from the profile of one"),
        *rest,
    )
    duties = (
        "all runs but the best stay secret: for ever, as do their number, the time they took, and what they"
        " released, logged or wrote",
        "candidates ignore the data: they were chosen without it, and runs know nothing of one another",
        f"scores are {private}",
        *one.duties,
    )
    other = "choosing anything else: which candidates there are, clip norm, epochs, on the same private data"
    covered = tuple(other if each.startswith(_CHOICE) else each for each in one.not_covered)
    record = {
        **one.record,
        "guarantee": {"epsilon": epsilon, "delta": s.delta, "repetitions": str(s.repetitions)},
    }
    return replace(
        one, items=items, proofs=(SELECTION, *one.proofs), duties=duties, not_covered=covered, record=record
    )
