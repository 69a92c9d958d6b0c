"""What a study found: one plain record, which results.json holds, and its tables."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import metadata
from typing import Any

from anechoic.errors import UnsupportedError
from anechoic.losses.dispatch import error
from anechoic.mechanism.mechanism import Mechanism
from anechoic.selection.selection import select
from anechoic.workloads import prefix_sum
from studies.comparison.study import KINDS, Arm, Kind, Outcome, Study, by_rate, gain, load, of_arm

#: Which kinds are compared with which.
AGAINST: dict[Kind, tuple[Kind, ...]] = {
    "independent": ("planned", "tree", "blt", "banded"),
    "tree": ("blt", "banded"),
}
TUNING = (
    "Each arm takes its own best learning rate, by the mean over the seeds. That choice costs privacy: the"
    " larger ε beside it is what anechoic.select needs for it by a score on public data, which this is not."
)
TUNED_APART = (
    "Each arm takes its own best learning rate, chosen on another seed, and beyond its grid where that"
    " does best at an end. That choice looks at the private data again: it is outside the guarantee."
)
SEEDED = (
    "The noise keys follow from the seeds, so that the figures can be reproduced: these runs protect nobody."
    " A run that protects anyone passes no keys. Several runs on the same data add up."
)


def make_record(study: Study, outcomes: Sequence[Outcome], **about: Any) -> dict[str, Any]:
    """Return the record of a study and of all its runs, in JSON values, with more entries `about` it."""
    named = {name: getattr(study.task, name) for name in ("title", "metric", "metric_long", "example")}
    return {
        **about,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}, {os.cpu_count()} processors",
        "versions": {name: metadata.version(name) for name in ("torch", "opacus", "numpy", "scipy")},
        "task": {**named, "description": study.task.describe(load(study.task))},
        "steps": study.steps,
        "delta": study.delta,
        "seeds": list(study.seeds),
        "tuned_on": study.tuned_on,
        "arms": [_arm(study, arm, outcomes) for arm in study.arms],
        "comparisons": comparisons(study, outcomes),
    }


def _arm(study: Study, arm: Arm, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    own, top = of_arm(arm, outcomes), study.figures(arm, outcomes)
    tried = [one for one in own if study.tuned_on in (None, one.seed)]
    plain = ("name", "title", "kind", "scheme", "unit", "epsilon", "clip_norm")
    return {
        **{name: getattr(arm, name) for name in plain},
        "best": {**asdict(top), "metrics": list(top.metrics)},
        "rates": [{"learning_rate": r, "mean": m, "error": e} for r, (m, e) in by_rate(tried).items()],
        "runs": [asdict(one) for one in own],
        "seconds": round(sum(one.seconds for one in own), 1),
        "mechanism": mechanism_record(arm) if arm.private else None,
    }


def mechanism_record(arm: Arm) -> dict[str, Any]:
    """Return what a private arm's mechanism is, and the error that it predicts of prefix sums."""
    mechanism = Mechanism.from_json(arm.mechanism or "")
    rms = error(prefix_sum(mechanism.steps), mechanism.strategy).rms
    return {
        "json": arm.mechanism,
        "strategy": mechanism.strategy.describe(),
        "sampling": mechanism.sampling.describe(mechanism.unit),
        "noise_std": mechanism.noise_std,
        "predicted": mechanism.noise_std * rms / mechanism.expected_batch_size,
        "epsilon": mechanism.epsilon(),
        "fingerprint": mechanism.fingerprint,
    }


def comparisons(study: Study, outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Return one entry for each pair of kinds in `AGAINST` with the same scheme, unit and epsilon."""
    rows = []
    for base in study.arms:
        for arm in study.arms:
            if arm.kind in AGAINST.get(base.kind, ()) and _setting(vars(arm)) == _setting(vars(base)):
                reached = study.figures(arm, outcomes)
                mean, spread = gain(reached, study.figures(base, outcomes))
                row = {name: getattr(arm, name) for name in ("scheme", "unit", "epsilon", "kind")}
                row |= {"base": base.kind, "chosen_epsilon": _chosen_epsilon(study, (base, arm))}
                rows.append(row | {"mean": mean, "error": spread if len(reached.metrics) > 1 else None})
    return rows


def _chosen_epsilon(study: Study, arms: Sequence[Arm]) -> float | None:
    """Return what `select` needs for the best of as many runs in the mean; None if no theorem covers it."""
    rates = len(study.grid(arms[0]))
    mechanisms = [Mechanism.from_json(arm.mechanism or "") for arm in arms]
    if rates == 1:
        return max(mechanism.epsilon() for mechanism in mechanisms)
    with suppress(UnsupportedError):
        if study.tuned_on is None:
            return max(select(one, mean=rates, score_on="public").epsilon() for one in mechanisms)
    return None


def lines(record: Mapping[str, Any]) -> Iterator[str]:
    """Yield the text that a study prints: its tables in Markdown, and what has to be known of them."""
    yield from (record["title"], f"{record['task']['description']}. {record['steps']:,} steps.", "")
    count = len(record["seeds"])
    spread = f"mean over {count} seeds ± standard error" if count > 1 else "one seed"
    yield from (f"{record['task']['metric_long']}; {spread}:", "", *markdown(*results(record)), "")
    for arm in record["arms"]:
        if arm["epsilon"] is None:
            yield f"{arm['title']}: {cell(arm['best'])} at learning rate {arm['best']['learning_rate']:g}."
    ends = [arm["title"] for arm in record["arms"] if arm["best"]["edge"]]
    if ends:
        yield f"Best at an end of the learning rates tried; more (--lr) could raise it: {'; '.join(ends)}."
    yield from (TUNING if record["tuned_on"] is None else TUNED_APART, SEEDED)


def results(record: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return head and rows of what the private arms reached, a row for each scheme, unit and epsilon."""
    private = [arm for arm in record["arms"] if arm["epsilon"] is not None]
    kinds = [kind for kind in KINDS if any(arm["kind"] == kind for arm in private)]
    pairs = list(dict.fromkeys((row["kind"], row["base"]) for row in record["comparisons"]))
    rows = []
    for setting in dict.fromkeys(map(_setting, private)):
        arms = {arm["kind"]: arm["best"] for arm in private if _setting(arm) == setting}
        compared = [row for row in record["comparisons"] if _setting(row) == setting]
        gains = {(row["kind"], row["base"]): row for row in compared}
        plain = [a["best"] for a in record["arms"] if (a["kind"], a["unit"]) == ("clipped", setting[1])]
        chosen = compared[0]["chosen_epsilon"] if compared else None
        rows.append(
            [*setting[:2], f"{setting[2]:g}", *(cell(arms.get(kind)) for kind in kinds)]
            + [cell(gains.get(pair), "+") for pair in pairs]
            + [cell(plain[0] if plain else None)]
            + ["–" if chosen is None else f"{math.ceil(1000 * chosen) / 1000:g}"]
        )
    head = ["batches", "unit", "ε", *(KINDS[kind] for kind in kinds)]
    differences = [f"{KINDS[kind]} − {KINDS[base]}" for kind, base in pairs]
    return [*head, *differences, "not private", "ε, rate chosen"], rows


def _setting(entry: Mapping[str, Any]) -> tuple[str, str, float]:
    return entry["scheme"], entry["unit"], entry["epsilon"]


def cell(found: Mapping[str, Any] | None, sign: str = "") -> str:
    """Return a mean with its standard error, which is None or without spread where there is one seed."""
    if found is None:
        return "–"
    several = found["error"] is not None and len(found.get("metrics", "..")) > 1
    spread = f" ± {found['error']:.4f}" if several else ""
    return f"{found['mean']:{sign}.4f}{spread}".replace("-", "−")


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table in Markdown."""
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]
