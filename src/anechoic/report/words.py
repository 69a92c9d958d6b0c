"""Sentences and numbers that the screen and the report share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

TUNING = (
    "Each arm takes its own best learning rate of this one grid, by the mean over the seeds. That"
    " choice looks at"
    " the private data again: it is outside the guarantee."
)

NOT_COVERED = (
    TUNING,
    "The metric is computed from the private data and published: each published figure is one"
    " more look at it.",
    "The noise keys follow from the seeds, so that the figures can be reproduced. A run that"
    " protects anyone passes"
    " no keys, and the engine draws them from the operating system.",
    "Several runs on the same data add up: each statement above is that of one run of its mechanism.",
)

SCHEMES = {"fixed": "fixed order", "poisson": "Poisson"}


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


def signed(value: float, digits: int) -> str:
    """`value` with its sign, a typographic minus."""
    return f"{value:+.{digits}f}".replace("-", "−")


def notes(arm: Mapping[str, Any]) -> str:
    """What an arm without privacy is."""
    if arm["kind"] == "clipped":
        return "Not private (the same training and clipping, without noise)"
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


def reference(record: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The arm that differs from the private ones by the noise alone, where the study has it."""
    return next((arm for arm in record["arms"] if arm["kind"] == "clipped"), None)


def arms_by_name(record: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The arms of a record."""
    return {arm["name"]: arm for arm in record["arms"]}


def schemes(record: Mapping[str, Any]) -> list[str]:
    """The ways batches are formed in a record's private arms, in the order of the arms."""
    return list(dict.fromkeys(arm["scheme"] for arm in record["arms"] if arm["epsilon"] is not None))


def central(rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The row of the middle epsilon: what a headline is about."""
    ordered = sorted(rows, key=lambda row: row["epsilon"])
    return ordered[(len(ordered) - 1) // 2]


def headline(record: Mapping[str, Any]) -> str:
    """The result in one sentence."""
    metric, arms, plain = record["task"]["metric"], arms_by_name(record), reference(record)
    without = (
        "" if plain is None else f"; the same training without noise reaches {plain['best']['mean']:.3f}"
    )
    if record["comparisons"]:
        row = central([r for r in record["comparisons"] if r["scheme"] == record["comparisons"][0]["scheme"]])
        planned, independent = (arms[row[kind]]["best"]["mean"] for kind in ("planned", "independent"))
        return (
            f"At ε = {row['epsilon']:g}, correlated noise reaches {metric} {planned:.3f} where"
            " independent noise"
            f" reaches {independent:.3f}{without}."
        )
    private = [arm for arm in record["arms"] if arm["epsilon"] is not None]
    if private:
        arm = central(private)
        what = arm["title"].split(",")[0]
        return f"At ε = {arm['epsilon']:g}, the {what} reaches {metric} {reached(arm)}{without}."
    return f"Without privacy, {metric} {record['arms'][0]['best']['mean']:.3f}."
