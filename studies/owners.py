"""What a study that protects the owners of examples prints of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anechoic.statement.rounding import round_up
from studies.comparison.record import markdown

COSTS_ARE = (
    "Noise std: of one entry of Z over the clip norm. Predicted error: of the running sums of mean gradients,"
    " root mean square over the steps, in clip norms."
)


def owner_lines(record: Mapping[str, Any]) -> list[str]:
    """Return the lines about owners; none where only examples are protected."""
    private = [arm for arm in record["arms"] if arm["mechanism"]]
    if {arm["unit"] for arm in private} == {"example"}:
        return []
    rows = [
        [arm["title"], f"{arm['mechanism']['noise_std']:.3g}", f"{arm['mechanism']['predicted']:.3g}"]
        for arm in private
    ]
    table = markdown(["arm", "noise std", "predicted error"], rows)
    return ["", *table, "", COSTS_ARE, bounded(record), *worth(record)]


def bounded(record: Mapping[str, Any]) -> str:
    """Return what is used of an owner's examples."""
    facts, example = record["units"], record["task"]["example"]
    name, bound = facts["name"], facts["bound"]
    if bound is None:
        return (
            f"{facts['count']:,} {name} own {facts['examples']:,} {example}s. Where the unit is"
            f" an {name}, batches are drawn of {name}: {facts['batch_size']} on average, each with at"
            f" most {facts['most_examples']} of its {example}s, drawn anew, averaged and clipped together."
        )
    unused = 1 - facts["used"] / facts["examples"]
    return (
        f"{facts['count']:,} {name} own {facts['examples']:,} {example}s. An {name} takes"
        f" part in at most {bound['limit']} batches, at least {bound['separation']} steps apart; the other"
        f" {example}s, {unused:.1%} of all, are scored but not trained on. In a batch, the {example}s of one"
        f" {name} are averaged and clipped together; the divisor is {facts['batch_size']}, the {name} in a"
        " batch on average. Who owns what and when it comes is taken as public; what is protected is what"
        f" the {example}s show."
    )


def worth(record: Mapping[str, Any]) -> list[str]:
    """Return what the statements about single examples say about an owner of several."""
    facts, example = record["units"], record["task"]["example"]
    name, delta, lines = facts["name"], f"{record['delta']:g}", []
    for row in facts["worth"]:
        what = "Independent noise" if row["kind"] == "independent" else "The planned mechanism"
        lines.append(
            f"{what} with ε = {row['epsilon']:g} for a {example} is ε = {round_up(row['worst'])}"
            f" (μ = {round_up(row['mu'])}) for the {name} that moves it most, and"
            f" {round_up(row['median'])} for one in the middle, at the same δ = {delta}: from their own"
            f" {example}s. Group privacy would say ε = {row['group']:g} for the {row['most_examples']}"
            f" {example}s of the busiest, at δ = {_at_most_one(row['group_delta'])}."
        )
    return lines


def _at_most_one(delta: float) -> str:
    return "1, which says nothing" if delta >= 1 else round_up(delta)
