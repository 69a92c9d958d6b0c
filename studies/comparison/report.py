"""The report of a study: what the noise cost and bought, why, and what is guaranteed."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

import numpy as np

from anechoic.losses.dispatch import error
from anechoic.mechanism.mechanism import Mechanism
from anechoic.plots.curves import Axis, Level, Line, heat_figure, line_figure
from anechoic.plots.style import as_image
from anechoic.statement.page import bullets, definitions, figure, fold, page, paragraph, section, table
from anechoic.statement.statement import statement_of
from anechoic.strategies import Identity
from anechoic.workloads import prefix_sum
from studies.comparison import words

#: Rows and columns of C and of its inverse that the heat maps show.
BLOCK = 48
#: Points of an error curve; more could not be told apart.
_POINTS = 400

Record = Mapping[str, Any]


def experiment_page(record: Record, mechanisms: Mapping[str, Mechanism], more: str = "") -> str:
    """The report as one HTML document that loads nothing.

    Args:
        record: as `studies.comparison.record.make_record` makes it, and results.json holds it.
        mechanisms: those of the private arms, by the arm's name.
        more: sections after the figures, as HTML.

    Raises:
        ValueError: if a private arm has no mechanism, or another one than the record says.
    """
    for arm in record["arms"]:
        if arm["epsilon"] is None:
            continue
        given = mechanisms.get(arm["name"])
        if given is None or given.fingerprint != arm["mechanism"]["fingerprint"]:
            found = "none" if given is None else given.fingerprint
            raise ValueError(
                f"arm {arm['name']!r} ran mechanism {arm['mechanism']['fingerprint']}, given is {found}:"
                " pass the mechanism files that were written with the record."
            )
    parts = [
        _head(record),
        _bought(record),
        more,
        *(_why(record, mechanisms, setting) for setting in words.settings(record)),
        _guarantees(record, mechanisms),
        _rates(record),
        section("Outside the guarantee", bullets(words.NOT_COVERED)),
        _made(record),
    ]
    return page(words.headline(record), "\n".join(part for part in parts if part))


def _head(record: Record) -> str:
    arms, metric = words.arms_by_name(record), record["task"]["metric"]
    cards = []
    for row in record["comparisons"]:
        independent, planned = arms[row["independent"]], arms[row["planned"]]
        which = "".join(f", {cell}" for cell in words.cells(record, row))
        cards.append(
            f'<div class="card"><p class="eps">ε = {row["epsilon"]:g}{escape(which)}</p>'
            f'<p class="gain">{words.signed(row["gain"], 3)}</p>'
            f'<p class="from">{escape(metric)} <b class="independent">{independent["best"]["mean"]:.3f}</b>'
            f' → <b class="planned">{planned["best"]["mean"]:.3f}</b></p></div>'
        )
    differs = "only the correlation of the noise over time differs"
    if "poisson" in words.schemes(record):
        differs += " (and, where batches are sampled, from how many examples each is drawn)"
    if len(words.units(record)) > 1:
        differs += " between the two, and what is protected between the rows"
    lead = (
        f"{record['task']['description']}. Independent noise and the planned, correlated noise have"
        f" the same guarantee (ε, {_power(record['delta'])}), the same model and the same {record['steps']:,}"
        f" steps; {differs}."
    )
    return (
        f'<header><p class="kicker">anechoic · {escape(record["title"])}</p>'
        f"<h1>{escape(words.headline(record))}</h1>{paragraph(lead, 'lead')}</header>"
        + (f'<div class="cards">{"".join(cards)}</div>' if cards else "")
    )


def _bought(record: Record) -> str:
    head, rows = words.compared(record)
    single, at_one_rate = words.at_one_rate(record)
    seeds = len(record["seeds"])
    mean = f", the mean over {seeds} seeds, ± its standard error" if seeds > 1 else ", of one seed"
    text = [f"The figures are {record['task']['metric_long']}{mean}. {words.TUNING}"]
    text += words.without_privacy(record)
    charts = [_utility_figure(record, setting) for setting in words.settings(record)]
    beside = "".join(paragraph(line) for line in text)
    return section(
        "What it bought",
        table(head, rows) if rows else "",
        paragraph(words.ONE_RATE) + table(single, at_one_rate) if at_one_rate else "",
        f'<div class="pair">{"".join(charts)}<div class="text">{beside}</div></div>',
    )


def _utility_figure(record: Record, setting: words.Setting) -> str:
    drawn, metric = _utility(record, setting), record["task"]["metric"]
    how = f" ({name})" if (name := words.named(record, setting)) else ""
    bars = "; bars are ± one standard error, where they exceed the marks" if len(record["seeds"]) > 1 else ""
    return figure(
        as_image(line_figure(**drawn), drawn["title"]),
        f"{metric[0].upper()}{metric[1:]} against ε{how}{bars}.",
    )


def _utility(record: Record, setting: words.Setting) -> dict[str, Any]:
    """Metric against epsilon, with what is reached without privacy: arguments of `line_figure`."""
    metric, lines = record["task"]["metric"], []
    for kind, label in (
        ("independent", "independent noise"),
        ("damped", "damped root"),
        ("planned", "planned mechanism"),
    ):
        arms = [
            a
            for a in record["arms"]
            if a["kind"] == kind and _setting(a) == setting and a["epsilon"] is not None
        ]
        arms.sort(key=lambda a: a["epsilon"])
        if arms:
            spread = [a["best"]["error"] for a in arms]
            lines.append(
                Line(label, kind, [a["epsilon"] for a in arms], [a["best"]["mean"] for a in arms], spread)
            )
    levels = [
        Level(
            "not private" if a["kind"] == "clipped" else "not private, not clipped",
            a["kind"],
            a["best"]["mean"],
        )
        for a in record["arms"]
        if a["epsilon"] is None and (a["kind"] != "clipped" or words.unit_of(a) == setting[1])
    ]
    ticks = sorted({value for line in lines for value in line.x})
    how = f" ({name})" if (name := words.named(record, setting)) else ""
    return {
        "lines": lines,
        "x": Axis("ε", log=True, ticks=ticks),
        "y": Axis(metric, form=lambda value: f"{value:.4g}"),
        "levels": levels,
        "title": f"{metric} against epsilon{how}",
    }


def _setting(arm: Mapping[str, Any]) -> words.Setting:
    return arm["scheme"], words.unit_of(arm)


def _why(record: Record, mechanisms: Mapping[str, Mechanism], setting: words.Setting) -> str:
    """Error per step and heat maps, at the middle epsilon."""
    planned = [a for a in record["arms"] if a["kind"] == "planned" and _setting(a) == setting]
    if not planned:
        return ""
    arm = words.central(planned)
    mechanism = mechanisms[arm["name"]]
    rivals = [a for a in record["arms"] if a["name"] == arm["name"].replace("planned", "independent", 1)]
    chosen = [(mechanisms[a["name"]], a["kind"]) for a in (*rivals, arm)]
    how = f" ({name})" if (name := words.named(record, setting)) else ""
    if isinstance(mechanism.strategy, Identity):
        return section(f"Why: independent noise was planned{how}", paragraph(arm["mechanism"]["reason"]))
    steps = np.unique(np.linspace(0, mechanism.steps - 1, min(_POINTS, mechanism.steps)).round().astype(int))
    curves = [m.noise_std * m.clip_norm * error(prefix_sum(m.steps), m.strategy).per_step for m, _ in chosen]
    names = {"independent": "independent noise", "planned": "planned mechanism"}
    lines = [
        Line(names[kind], kind, (steps + 1).tolist(), curve[steps].tolist(), markers=False)
        for curve, (_, kind) in zip(curves, chosen, strict=True)
    ]
    title = "predicted error of the sum of gradients at each step"
    chart = line_figure(
        lines,
        x=Axis("step", zero=True),
        y=Axis("error of the gradient sum (std)", zero=True),
        title=title,
    )
    ratio = (
        f" After the last step it is {curves[0][-1] / curves[-1][-1]:.2g} times smaller." if rivals else ""
    )
    caption = (
        "Predicted standard deviation, per coordinate, of the noise in the sum of all clipped gradients so"
        f" far, in gradient units, at ε = {arm['epsilon']:g}.{ratio}"
    )
    size = min(BLOCK, mechanism.steps)
    block = mechanism.strategy.truncate(size)
    maps = "".join(
        f'<div class="map">{as_image(heat_figure(matrix, label=label, title=label), label)}</div>'
        for matrix, label in (
            (block.to_dense(), "C, the strategy"),
            (block.correlate(np.eye(block.rows)), "C⁻¹, which correlates the noise"),
        )
    )
    maps_text = (
        f"First {size} of {mechanism.steps:,} steps, row by row: step t injects row t of C⁻¹Z, where Z is"
        " fresh independent noise. Orange entries of C⁻¹ take back part of the noise of earlier steps; in the"
        " sum over all steps what was added and what was taken back cancel. Colours follow the square root of"
        " the entries."
    )
    text = (
        "An optimiser applies sums of gradients. Independent noise piles up in them; correlated noise is"
        " arranged so that later steps subtract part of what earlier steps added. The price is a larger noise"
        " at each single step, for the same privacy."
    )
    return section(
        f"Why: the noise cancels{how}",
        f'<div class="pair"><div class="text">{paragraph(text)}{paragraph(arm["mechanism"]["reason"])}</div>'
        f"{figure(as_image(chart, title), caption)}</div>",
        f'<figure><div class="pair">{maps}</div><figcaption>{escape(maps_text)}</figcaption></figure>',
    )


def _guarantees(record: Record, mechanisms: Mapping[str, Mechanism]) -> str:
    private = [arm for arm in record["arms"] if arm["epsilon"] is not None]
    if not private:
        return ""
    planned = [arm for arm in private if arm["kind"] == "planned"] or private
    planned = [arm for arm in planned if words.unit_of(arm) != "example"] or planned
    first = words.central(planned)
    ordered = [first, *(arm for arm in private if arm is not first)]
    folds = [
        fold(
            arm["title"],
            definitions(words.with_keys_from_seeds(statement_of(mechanisms[arm["name"]])).pairs),
            opened=arm is first,
        )
        for arm in ordered
    ]
    return section(
        "The guarantee",
        "<p>The statement of each mechanism that ran, as <code>anechoic explain</code> prints it"
        " from the file beside this report, and what the keys of a study are.</p>",
        *folds,
    )


def _rates(record: Record) -> str:
    grid = record["learning_rates"]
    rows, marked = [], []
    for r, arm in enumerate(record["arms"]):
        found = {entry["learning_rate"]: entry for entry in arm["rates"]}
        several = len(arm["best"]["metrics"]) > 1
        cells = [
            words.with_error(found[g]["mean"], found[g]["error"] if several else None) if g in found else ""
            for g in grid
        ]
        rows.append([arm["title"], *cells])
        marked.append((r, 1 + grid.index(arm["best"]["learning_rate"])))
    return section(
        "Every learning rate",
        paragraph(words.TUNING),
        table(["arm", *(f"{rate:g}" for rate in grid)], rows, best=marked),
        *(paragraph(line, "soft") for line in words.edges(record)),
    )


def _made(record: Record) -> str:
    machine = record["machine"]
    seconds = record["seconds"]
    runs = sum(len(arm["runs"]) for arm in record["arms"])
    items = [
        ("Runs", f"{runs} runs of {record['steps']:,} steps, seeds {', '.join(map(str, record['seeds']))}"),
        (
            "Time",
            f"{seconds:.0f} s with {record['jobs']} worker processes on {machine['processors']} processors",
        ),
        ("Model", f"{record['task']['parameters']:,} parameters, clip norm {record['clip_norm']:g}"),
        (
            "Versions",
            ", ".join([f"Python {machine['python']}", *(f"{k} {v}" for k, v in machine["versions"].items())]),
        ),
        ("System", machine["system"]),
        ("Written", record["created"]),
        ("Beside this file", "results.json (every run), one mechanism file for each private arm"),
    ]
    command = f"<pre><code>{escape(record['command'])}</code></pre>"
    return section("How it was made", command, definitions(items))


def _power(delta: float) -> str:
    digits = f"{delta:.0e}".split("e")
    if float(f"{delta:.0e}") != delta:
        return f"{delta:g}"
    raised = str(int(digits[1])).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"10{raised}" if digits[0] == "1" else f"{digits[0]}·10{raised}"
