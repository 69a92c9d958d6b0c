"""Sentences and numbers that the screen and the report share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from anechoic.mechanism.statement_text import KEYS
from anechoic.statement.statement import Statement

TUNING = (
    "Each arm takes its own best learning rate of its grid, by the mean over the seeds. That choice costs"
    " privacy: the larger ε beside it is what anechoic.select needs for it with the same noise, as many"
    " runs in the mean as there are rates, and a score on public data, which the metric here is not. A rate"
    " that is taken without looking costs nothing."
)
#: Name of the column of that ε.
CHOSEN = "ε, rate chosen"
WIDENED = ", and further where an arm does best at an end of its grid"

NOT_COVERED = (
    "The metric is computed from the private data and published: each published figure is one"
    " more look at it, and so is the choice of a best rate by this metric.",
    "The noise keys follow from the seeds, so that the figures can be reproduced. A run that protects anyone"
    " passes no keys, and the engine draws them from the operating system.",
    "Several runs on the same data add up: each statement above is that of one run of its mechanism.",
)

#: In the place of the duty `anechoic.mechanism.statement_text.KEYS`, in statements about the runs of a study.
SEEDED = (
    "in this study keys follow from the seeds, so that its figures can be reproduced: whoever knows the seeds"
    " can take the noise off. The statement is that of a run whose keys come from the operating system, stay"
    " secret, and are used once"
)

SCHEMES = {"fixed": "fixed order", "poisson": "sampled"}

#: A way to form batches, and what is protected.
Setting = tuple[str, str]


def with_keys_from_seeds(statement: Statement) -> Statement:
    """What `statement` says of a run of a study, whose keys are no secret."""
    duties = tuple(SEEDED if duty == KEYS else duty for duty in statement.duties)
    return replace(statement, duties=duties)


def reached(arm: Mapping[str, Any]) -> str:
    """Metric of an arm's best learning rate, with its standard error where there are several seeds."""
    return with_error(arm["best"]["mean"], arm["best"]["error"] if len(arm["best"]["metrics"]) > 1 else None)


def with_error(mean: float, error: float | None) -> str:
    """`mean ± error` to four decimals; the mean alone where the error is None."""
    return f"{mean:.4f}" if error is None else f"{mean:.4f} ± {error:.4f}"


def gained(row: Mapping[str, Any]) -> str:
    """Gain of a comparison, with its sign, and its standard error where there are several seeds."""
    spread = "" if row["gain_error"] is None else f" ± {row['gain_error']:.4f}"
    return signed(row["gain"], 4) + spread


def chosen_epsilon(row: Mapping[str, Any]) -> str:
    """What the best rates of a comparison cost together with their choice, rounded up."""
    found = row.get("chosen_epsilon")
    return "–" if found is None else f"{math.ceil(1000 * found) / 1000:g}"


def compared(record: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Head and rows of the comparisons at the best rate of each arm; the gain is the cell before the last."""
    arms, rows = arms_by_name(record), []
    for row in record["comparisons"]:
        plain = reference(record, unit_of(row))
        rows.append(
            [
                *cells(record, row),
                f"{row['epsilon']:g}",
                chosen_epsilon(row),
                reached(arms[row["independent"]]),
                reached(arms[row["planned"]]),
                gained(row),
                "–" if plain is None else reached(plain),
            ]
        )
    return [*heading(record), "ε", CHOSEN, "independent", "planned", "gain", "not private"], rows


def without_privacy(record: Mapping[str, Any]) -> list[str]:
    """What the arms without privacy reach: a sentence each."""
    return [
        f"{notes(arm)}: {reached(arm)} at learning rate {arm['best']['learning_rate']:g}."
        for arm in record["arms"]
        if arm["epsilon"] is None
    ]


def at_one_rate(record: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Head and rows of the comparisons at the one rate that was taken without looking; no rows without it."""
    rows = [
        [
            *cells(record, row),
            f"{row['epsilon']:g}",
            f"{taken['learning_rate']:g}",
            reached(taken["independent"]),
            reached(taken["planned"]),
            gained(taken),
        ]
        for row in record["comparisons"]
        if (taken := row.get("taken"))
    ]
    return [*heading(record), "ε", "learning rate", "independent", "planned", "gain"], rows


#: What stands over these rows.
ONE_RATE = "One rate for all, taken without looking: nothing is chosen"


def signed(value: float, digits: int) -> str:
    """`value` with its sign, a typographic minus."""
    return f"{value:+.{digits}f}".replace("-", "−")


def notes(arm: Mapping[str, Any]) -> str:
    """What an arm without privacy is."""
    if arm["kind"] == "clipped":
        unit = "" if unit_of(arm) == "example" else f" by {unit_of(arm)}"
        return f"Not private (the same training and clipping{unit}, without noise)"
    return "Not private, without clipping either (plain SGD)"


def edges(record: Mapping[str, Any]) -> list[str]:
    """A sentence for each end of the grid at which some arm does best: better ones may lie beyond it."""
    lines = []
    for edge in ("lowest", "highest"):
        names = [arm["title"] for arm in record["arms"] if arm["best"]["edge"] == edge]
        if names:
            lines.append(
                f"Best at the {edge} learning rate of the grid, so that a wider grid (--lr) could raise it:"
                f" {'; '.join(names)}."
            )
    return lines


def reference(record: Mapping[str, Any], unit: str = "example") -> Mapping[str, Any] | None:
    """The arm that differs from the private ones of a unit by the noise alone, where the study has it."""
    return next((a for a in record["arms"] if a["kind"] == "clipped" and unit_of(a) == unit), None)


def arms_by_name(record: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The arms of a record."""
    return {arm["name"]: arm for arm in record["arms"]}


def schemes(record: Mapping[str, Any]) -> list[str]:
    """The ways batches are formed in a record's private arms, in the order of the arms."""
    return list(dict.fromkeys(arm["scheme"] for arm in record["arms"] if arm["epsilon"] is not None))


def unit_of(entry: Mapping[str, Any]) -> str:
    """What an arm or a comparison protects: "example", where the record does not say."""
    return str(entry.get("unit", "example"))


def units(record: Mapping[str, Any]) -> list[str]:
    """What a record's private arms protect, in the order of the arms."""
    return list(dict.fromkeys(unit_of(arm) for arm in record["arms"] if arm["epsilon"] is not None))


def settings(record: Mapping[str, Any]) -> list[Setting]:
    """The settings of a record's private arms, in the order of the arms."""
    private = [arm for arm in record["arms"] if arm["epsilon"] is not None]
    return list(dict.fromkeys((arm["scheme"], unit_of(arm)) for arm in private))


def unit_name(record: Mapping[str, Any], unit: str) -> str:
    """A unit as people call it: "flight" for an example of the flights."""
    return str(record["task"].get("example", unit)) if unit == "example" else unit


def heading(record: Mapping[str, Any]) -> list[str]:
    """Names of the columns that tell a record's settings apart."""
    return ["batches"] * (len(schemes(record)) > 1) + ["unit"] * (len(units(record)) > 1)


def cells(record: Mapping[str, Any], entry: Mapping[str, Any]) -> list[str]:
    """What stands in these columns for an arm or a comparison."""
    shown = [SCHEMES[entry["scheme"]]] * (len(schemes(record)) > 1)
    return shown + [unit_name(record, unit_of(entry))] * (len(units(record)) > 1)


def named(record: Mapping[str, Any], setting: Setting) -> str:
    """A setting in words; empty where a record has but one."""
    return ", ".join(cells(record, {"scheme": setting[0], "unit": setting[1]}))


def central(rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The row of the middle epsilon: what a headline is about."""
    ordered = sorted(rows, key=lambda row: row["epsilon"])
    return ordered[(len(ordered) - 1) // 2]


def headline(record: Mapping[str, Any]) -> str:
    """The result in one sentence."""
    metric, arms, plain = record["task"]["metric"], arms_by_name(record), reference(record)
    if len(units(record)) > 1 and record["comparisons"]:
        return _headline_of_units(record, arms)
    without = (
        "" if plain is None else f"; the same training without noise reaches {plain['best']['mean']:.3f}"
    )
    if record["comparisons"]:
        row = central([r for r in record["comparisons"] if r["scheme"] == record["comparisons"][0]["scheme"]])
        planned, independent = (arms[row[kind]]["best"]["mean"] for kind in ("planned", "independent"))
        return (
            f"At ε = {row['epsilon']:g}, correlated noise reaches {metric} {planned:.3f} where independent"
            f" noise reaches {independent:.3f}{without}."
        )
    private = [arm for arm in record["arms"] if arm["epsilon"] is not None]
    if private:
        arm = central(private)
        what = arm["title"].split(",")[0]
        return f"At ε = {arm['epsilon']:g}, the {what} reaches {metric} {reached(arm)}{without}."
    return f"Without privacy, {metric} {record['arms'][0]['best']['mean']:.3f}."


def _headline_of_units(record: Mapping[str, Any], arms: Mapping[str, Mapping[str, Any]]) -> str:
    metric, said = record["task"]["metric"], []
    for unit in units(record):
        name = article(unit_name(record, unit))
        row = central([r for r in record["comparisons"] if unit_of(r) == unit])
        planned, independent = (arms[row[kind]]["best"]["mean"] for kind in ("planned", "independent"))
        said.append(
            f"to protect {name} it is {metric} {planned:.3f} with correlated noise and {independent:.3f} with"
            " independent noise"
        )
    return f"At ε = {row['epsilon']:g}, {'; '.join(said)}."


def article(word: str) -> str:
    return f"an {word}" if word[0] in "aeio" else f"a {word}"
