"""What a study that protects the owners of examples says of them, on the screen and in its report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from anechoic.statement.page import bullets, paragraph, section, table
from anechoic.statement.rounding import round_up
from studies.comparison.words import arms_by_name, article, cells, heading, unit_name, units


@dataclass(frozen=True)
class Owners:
    """Facts about the owners of examples: the entry "units" of a record.

    Args:
        facts: as `studies.aircraft` finds them.
    """

    facts: Mapping[str, Any]

    def lines(self, record: Mapping[str, Any]) -> list[str]:
        """For the screen; none where only examples are protected."""
        if len(units(record)) < 2:
            return []
        head, rows = costs(record)
        costly = ["; ".join(f"{name} {cell}" for name, cell in zip(head, row, strict=True)) for row in rows]
        return [COSTS_ARE, *costly, *bounded(record), *worth(record)]

    def section(self, record: Mapping[str, Any]) -> str:
        """How an owner's part is bounded, and what the statements about its examples say of it."""
        if len(units(record)) < 2:
            return ""
        facts, name = record["units"], record["units"]["name"]
        rows = [
            [
                str(row["separation"]),
                str(row["limit"]),
                str(row["participations"]),
                f"{row['kept']:.1%}",
                f"{row['owners_a_batch']:.1f}",
                f"{row['predicted']:.4g}",
            ]
            for row in facts["compared"]
        ]
        head = ["steps apart", "at most", "busiest", "used", f"{name} a batch", "predicted error"]
        chosen = facts["bound"] or {}
        marked = [i for i, row in enumerate(facts["compared"]) if all(row[k] == v for k, v in chosen.items())]
        why = (
            "Bounds that were compared, by the error that the plan predicts of the sums of mean gradients for"
            " one noise multiplier: of those within 5 % of the least, the one that uses most is taken."
        )
        return section(
            f"What it takes to protect one {name}",
            *(paragraph(line) for line in bounded(record)),
            bullets(worth(record)) if facts["worth"] else "",
            paragraph(COSTS_ARE) + table(*costs(record)),
            paragraph(why, "soft") + table(head, rows, best=[(i, 5) for i in marked]) if rows else "",
        )


#: What `costs` are.
COSTS_ARE = (
    "Noise std: of one entry of Z over the clip norm. Predicted error: of the running sums of mean gradients,"
    " root mean square over the steps, in clip norms. Each is independent / planned."
)


def costs(record: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Head and rows of what a unit costs: independent / planned, in clip norms."""
    arms, rows = arms_by_name(record), []
    for row in record["comparisons"]:
        pair = [arms[row[kind]]["mechanism"] for kind in ("independent", "planned")]
        both = [" / ".join(f"{m[key]:.3g}" for m in pair) for key in ("noise_std", "predicted")]
        rows.append([*cells(record, row), f"{row['epsilon']:g}", *both])
    return [*heading(record), "ε", "noise std", "predicted error"], rows


def bounded(record: Mapping[str, Any]) -> list[str]:
    """What is used of an owner's examples, where some arms protect owners."""
    facts, example = record["units"], unit_name(record, "example")
    name, bound = facts["name"], facts["bound"]
    if bound is None:
        return [
            f"{facts['count']:,} {name} own {facts['examples']:,} {example}s. Where the unit is"
            f" {article(name)}, batches are drawn of {name}: {facts['batch_size']} on average, each with at"
            f" most {facts['most_examples']} of its {example}s, drawn anew, averaged and clipped together."
        ]
    unused = 1 - facts["used"] / facts["examples"]
    return [
        f"{facts['count']:,} {name} own {facts['examples']:,} {example}s. {article(name).capitalize()} takes"
        f" part in at most {bound['limit']} batches, at least {bound['separation']} steps apart; the other"
        f" {example}s, {unused:.1%} of all, are scored but not trained on. In a batch, the {example}s of one"
        f" {name} are averaged and clipped together; the divisor is {facts['batch_size']}, the {name} in a"
        " batch on average. Who owns what and when it comes is taken as public; what is protected is what"
        f" the {example}s show.",
    ]


def worth(record: Mapping[str, Any]) -> list[str]:
    """What the statements about single examples say about an owner of several."""
    facts, example = record["units"], unit_name(record, "example")
    name, delta, lines = facts["name"], f"{record['delta']:g}", []
    for row in facts["worth"]:
        what = "Independent noise" if row["kind"] == "independent" else "The planned mechanism"
        lines.append(
            f"{what} with ε = {row['epsilon']:g} for {article(example)} is ε = {round_up(row['worst'])}"
            f" (μ = {round_up(row['mu'])}) for the {name} that moves it most, and"
            f" {round_up(row['median'])} for one in the middle, at the same δ = {delta}: from their own"
            f" {example}s. Group privacy would say ε = {row['group']:g} for the {row['most_examples']}"
            f" {example}s of the busiest, at δ = {_at_most_one(row['group_delta'])}."
        )
    return lines


def _at_most_one(delta: float) -> str:
    return "1, which says nothing" if delta >= 1 else round_up(delta)
