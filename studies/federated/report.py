"""The report of a federation's study: what each kind of noise reached, and what is guaranteed to a client."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

import numpy as np

from anechoic.losses.dispatch import error
from anechoic.mechanism.mechanism import Mechanism
from anechoic.participation import MinSep
from anechoic.plots.curves import Axis, Level, Line, line_figure
from anechoic.plots.style import as_image, as_svg
from anechoic.sampling.base import counted
from anechoic.statement.page import bullets, definitions, figure, fold, page, paragraph, section, table
from anechoic.statement.statement import statement_of
from anechoic.workloads import prefix_sum
from studies.comparison import words

Record = Mapping[str, Any]

#: Kinds of noise in the order of the tables, and as people call them.
KINDS = {"independent": "independent", "tree": "tree", "blt": "BLT", "banded": "banded"}
#: The epsilon that headlines are about, where the study has it.
HEADLINE = 8.0
_POINTS = 400

TUNING = (
    "Each arm takes its own best learning rate, chosen on a seed of its own: rates double, and one more is"
    " tried as long as the best lies at an end. The figures are those of other seeds, with other clients and"
    " other noise. That choice looks at the private data again: it is outside the guarantee."
)
OUTSIDE = (
    TUNING,
    "The metric is computed on data that no client holds. Clip norm, local steps, momentum and rounds are the"
    " same for all arms; they were set after a few trial runs at ε = 8, which looked at the same test data.",
    "Keys follow from the seeds, so that the figures can be reproduced. A run that protects anyone passes no"
    " key.",
    "Several runs on the same clients add up: each statement above is that of one run of its mechanism.",
)


def federated_page(record: Record, mechanisms: Mapping[str, Mechanism], statement: str = "") -> str:
    """The report as one HTML document that loads nothing.

    Args:
        record: as `studies.federated.record.make_record` makes it, and results.json holds it.
        mechanisms: those of the private arms, by the arm's name.
        statement: what the server of one run states, as text.
    """
    parts = [
        _head(record),
        section("What it bought", table(*accuracy_table(record)), _gains(record), _chart(record)),
        _why(record, mechanisms),
        _guarantee(record, mechanisms, statement),
        _rates(record),
        section("Outside the guarantee", bullets(OUTSIDE)),
        _made(record),
    ]
    return page(headline(record), "\n".join(part for part in parts if part))


def headline(record: Record) -> str:
    """The result in one sentence."""
    epsilon = _central(record)
    if epsilon is None:
        return f"Without privacy, {record['task']['metric']} {record['arms'][0]['best']['mean']:.3f}."
    arms = ((name, _arm(record, kind, epsilon)) for kind, name in KINDS.items())
    said = [f"{name} {arm['best']['mean']:.3f}" for name, arm in arms if arm is not None]
    return f"At ε = {epsilon:g} for a whole client, {record['task']['metric']}: {', '.join(said)}."


def accuracy_table(record: Record) -> tuple[list[str], list[list[str]]]:
    """Headings, and a row for each epsilon: what every kind of noise reached, in percent."""
    rows = []
    for epsilon in _epsilons(record):
        arms = [_arm(record, kind, epsilon) for kind in KINDS]
        rows.append([f"{epsilon:g}", *("–" if arm is None else percent(arm["best"]) for arm in arms)])
    plain = next((arm for arm in record["arms"] if arm["epsilon"] is None), None)
    if plain is not None:
        rows.append(["not private", percent(plain["best"]), *[""] * (len(KINDS) - 1)])
    return ["ε", *KINDS.values()], rows


def gain_table(record: Record) -> tuple[list[str], list[list[str]]]:
    """Headings, and a row for each epsilon: differences in points, paired by seed, with standard errors."""
    pairs = list(dict.fromkeys((row["kind"], row["base"]) for row in record["comparisons"]))
    rows = []
    for epsilon in _epsilons(record):
        found = {(r["kind"], r["base"]): r for r in record["comparisons"] if r["epsilon"] == epsilon}
        rows.append([f"{epsilon:g}", *(_points(found.get(pair)) for pair in pairs)])
    return ["ε", *(f"{KINDS[kind]} − {KINDS[base]}" for kind, base in pairs)], rows


def percent(best: Mapping[str, Any]) -> str:
    """Mean in percent, with its standard error where there are several seeds."""
    spread = f" ± {100 * best['error']:.2f}" if len(best["metrics"]) > 1 else ""
    return f"{100 * best['mean']:.2f}{spread}"


def federated_chart(record: Record) -> str:
    """The text of an SVG file that shows the metric against epsilon, for use outside the report."""
    drawn = _drawn(record)
    return as_svg(line_figure(**drawn), drawn["title"])


def _points(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return "–"
    spread = "" if row["gain_error"] is None else f" ± {100 * row['gain_error']:.2f}"
    return words.signed(100 * row["gain"], 2) + spread


def _epsilons(record: Record) -> list[float]:
    return sorted({arm["epsilon"] for arm in record["arms"] if arm["epsilon"] is not None})


def _central(record: Record) -> float | None:
    found = _epsilons(record)
    return None if not found else HEADLINE if HEADLINE in found else found[(len(found) - 1) // 2]


def _arm(record: Record, kind: str, epsilon: float) -> Mapping[str, Any] | None:
    return next((a for a in record["arms"] if (a["kind"], a["epsilon"]) == (kind, epsilon)), None)


def _head(record: Record) -> str:
    rounds = record["rounds"]
    allowed = MinSep(rounds["separation"], rounds["max_participations"])
    possible = allowed.max_participations_in(rounds["rounds"])
    lead = (
        f"{record['task']['description']}. {rounds['rounds']:,} rounds of {rounds['clients_per_round']}"
        f" clients; a client rests for {counted(rounds['separation'], 'round')} and takes part at most"
        f" {counted(possible, 'time')}, which the server's ledger enforces. It makes"
        f" {rounds['local_steps']} gradient steps on its own examples, and its update is clipped to"
        f" {rounds['clip_norm']:g}. All arms have the same guarantee for a client (ε,"
        f" δ = 1/N^1.1 = {record['delta']:.3g}), model and rounds: only the correlation of the"
        " noise over the rounds differs, and the learning rate."
    )
    return (
        f'<header><p class="kicker">anechoic · {escape(record["title"])}</p>'
        f"<h1>{escape(headline(record))}</h1>{paragraph(lead, 'lead')}</header>"
    )


def _gains(record: Record) -> str:
    if not record["comparisons"]:
        return ""
    seeds = len(record["seeds"])
    about = (
        f"In percent: {record['task']['metric_long']}; mean over {seeds} seeds ± standard error. Below,"
        " differences in points, paired by seed."
    )
    return paragraph(about, "soft") + table(*gain_table(record))


def _chart(record: Record) -> str:
    drawn = _drawn(record)
    return figure(
        as_image(line_figure(**drawn), drawn["title"]),
        f"{drawn['y'].label} against ε for a whole client; bars are ± one standard error.",
    )


def _drawn(record: Record) -> dict[str, Any]:
    lines = []
    for kind, name in KINDS.items():
        arms = [arm for e in _epsilons(record) if (arm := _arm(record, kind, e)) is not None]
        if arms:
            values = [100 * arm["best"]["mean"] for arm in arms]
            spread = [100 * arm["best"]["error"] for arm in arms]
            lines.append(Line(name, kind, [arm["epsilon"] for arm in arms], values, spread))
    levels = [
        Level("not private", "clipped", 100 * arm["best"]["mean"])
        for arm in record["arms"]
        if arm["epsilon"] is None
    ]
    return {
        "lines": lines,
        "x": Axis("ε for a whole client", log=True, ticks=_epsilons(record)),
        "y": Axis(f"{record['task']['metric']} in %"),
        "levels": levels,
        "title": f"{record['task']['title'][:1].upper()}{record['task']['title'][1:]}",
    }


def _why(record: Record, mechanisms: Mapping[str, Mechanism]) -> str:
    """Predicted error round by round, at one epsilon."""
    epsilon = _central(record)
    arms = [] if epsilon is None else [_arm(record, kind, epsilon) for kind in KINDS]
    lines, rows = [], []
    for arm in filter(None, arms):
        mechanism = mechanisms[arm["name"]]
        curve = mechanism.noise_std * error(prefix_sum(mechanism.steps), mechanism.strategy).per_step
        curve = curve / mechanism.expected_batch_size
        shown = np.unique(
            np.linspace(0, mechanism.steps - 1, min(_POINTS, mechanism.steps)).round().astype(int)
        )
        lines.append(
            Line(KINDS[arm["kind"]], arm["kind"], (shown + 1).tolist(), curve[shown].tolist(), markers=False)
        )
        found = arm["mechanism"]
        rows.append(
            [KINDS[arm["kind"]], found["strategy"], f"{found['noise_std']:.3f}", f"{found['predicted']:.4f}"]
        )
    if not lines:
        return ""
    title = "predicted error of the sum of mean updates after each round"
    chart = line_figure(
        lines,
        x=Axis("round", zero=True),
        y=Axis("error of the sum of updates (std)", zero=True),
        title=title,
    )
    text = (
        f"At ε = {epsilon:g}. Noise std: of one entry of Z, in clip norms. Predicted error: of the running"
        " sum of mean updates, root mean square over the rounds, in clip norms. Independent noise piles up in"
        " the sum; correlated noise takes back in later rounds part of what it added."
    )
    return section(
        "Why: the noise cancels",
        table(["noise", "strategy", "noise std", "predicted error"], rows),
        paragraph(text, "soft"),
        figure(
            as_image(chart, title),
            "Predicted standard deviation, per coordinate, of the noise in the sum of mean updates.",
        ),
    )


def _guarantee(record: Record, mechanisms: Mapping[str, Mechanism], statement: str) -> str:
    seen, rounds = record["ledger"], record["rounds"]
    apart = "nobody came twice" if seen["nearest"] is None else f"at least {seen['nearest']} rounds apart"
    text = (
        f"In all {seen['runs']} runs, the ledger saw a client at most {seen['most']} times"
        f" ({rounds['max_participations']} are allowed), {apart} ({rounds['separation']} are asked for). A"
        f" run took {seen['hours']:,} hours on average, one attempt an hour; in {seen['starved']:,} of them"
        " too few clients were there, and it waited."
    )
    epsilon = _central(record)
    folds = [
        fold(
            arm["title"],
            definitions(words.with_keys_from_seeds(statement_of(mechanisms[arm["name"]])).pairs),
            opened=(arm["kind"], arm["epsilon"]) == ("blt", epsilon) and not statement,
        )
        for arm in record["arms"]
        if arm["epsilon"] is not None
    ]
    stated = (
        fold(
            "What the server of one run states before its first round",
            f"<pre>{escape(statement)}</pre>",
            opened=True,
        )
        if statement
        else ""
    )
    return section("The guarantee", paragraph(text), stated, *folds)


def _rates(record: Record) -> str:
    grid = sorted({entry["learning_rate"] for arm in record["arms"] for entry in arm["tuning"]})
    rows, marked = [], []
    for r, arm in enumerate(record["arms"]):
        found = {entry["learning_rate"]: entry["metric"] for entry in arm["tuning"]}
        rows.append([arm["title"], *(f"{100 * found[g]:.2f}" if g in found else "" for g in grid)])
        marked.append((r, 1 + grid.index(arm["best"]["learning_rate"])))
    ends = [arm["title"] for arm in record["arms"] if arm["best"]["edge"]]
    left = f"Best at an end of what was tried: {'; '.join(ends)}." if ends else "No best lies at an end."
    return section(
        "Every learning rate",
        paragraph(TUNING),
        table(["arm", *(f"{rate:g}" for rate in grid)], rows, best=marked),
        paragraph(left, "soft"),
    )


def _made(record: Record) -> str:
    machine = record["machine"]
    runs = sum(len(arm["runs"]) for arm in record["arms"])
    seconds = sum(arm["seconds"] for arm in record["arms"])
    versions = [f"Python {machine['python']}", *(f"{k} {v}" for k, v in machine["versions"].items())]
    items = [
        ("Runs", f"{runs}, of {record['rounds']['rounds']:,} rounds; {seconds:.0f} s of the machine"),
        ("Server", f"momentum {record['rounds']['momentum']:g}, in memory"),
        ("Seeds", f"{', '.join(map(str, record['seeds']))}; learning rates on seed {record['tuning_seed']}"),
        ("Machine", f"{machine['system']}, {machine['processors']} processors"),
        ("Versions", ", ".join(versions)),
        ("Written", record["created"]),
        ("Beside this file", "results.json (every run), one mechanism file for each private arm"),
    ]
    return section(
        "How it was made", f"<pre><code>{escape(record['command'])}</code></pre>", definitions(items)
    )
