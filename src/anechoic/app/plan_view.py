"""Compute what the page shows, part by part, in a process of its own."""

from __future__ import annotations

from collections.abc import Iterator
from multiprocessing.connection import Connection

import numpy as np

from anechoic.app.plan_form import PlanForm, field_of
from anechoic.errors import AnechoicError
from anechoic.losses.dispatch import error
from anechoic.planning.compare import plan
from anechoic.planning.page import folded_reason, plan_pictures, ranked_table
from anechoic.planning.result import Plan
from anechoic.statement.page import definitions, paragraph, section
from anechoic.statement.rounding import duration, size


def parts(question: PlanForm) -> Iterator[tuple[str, str]]:
    """(name, text) of what becomes known, the quickest first; "doing" says what is computed next.

    The names are "facts", "table" and "pictures" (HTML), "code" (Python), "mechanism" and
    "statement.json" (JSON), "statement.txt", and at the end "done".
    """
    yield "doing", f"Comparing mechanisms for N = {question.examples}, B = {question.batch_size}"
    given = question.arguments()
    found = plan(**given)
    yield "facts", facts(found)
    yield "table", section("Ranked candidates", ranked_table(found.lines), folded_reason(found))
    yield "code", question.code()
    yield "mechanism", found.mechanism.to_json()
    yield "doing", "Drawing"
    yield "pictures", plan_pictures(found.lines)
    yield "doing", "Writing the statement"
    yield "statement.txt", found.mechanism.report("text")
    yield "statement.json", found.mechanism.report("json")
    yield "done", ""


def facts(found: Plan) -> str:
    """The choice in a few numbers, and what to expect of it, as HTML."""
    best, steps = found.chosen, found.mechanism.steps
    shown = {
        "Chosen": f"{best.name}, {best.sampling}, B = {best.batch_size:g}, {steps:,} steps",
        "Noise in the kept model": f"{kept_noise(found):.3g} clip norms a parameter, at a learning rate of 1",
        "Predicted noise": f"{best.predicted:.4g}; candidates are ranked by it",
        "Noise of one step": f"{best.step_noise:.3g} clip norms",
    }
    if found.advice is not None:
        shown["Learning rate"] = f"try {found.advice.rate:.2g} first"
    if best.memory is not None and best.seconds is not None:
        times = f"{duration(best.seconds)} a step, {duration(best.seconds * steps)} a run (one core)"
        shown["Noise state"] = f"{size(best.memory)}, {times}"
    return definitions(shown.items()) + section("In short", *map(paragraph, found.sentences("'Why' below")))


def kept_noise(found: Plan) -> float:
    """Std of the noise in a parameter of the model that is kept, in clip norms at a learning rate of 1.

    Of a mean of iterates the root mean square of theirs, which its own does not exceed.
    """
    row, kept = found.chosen, found.chosen.objective.kept
    errors = error(row.objective.workload, found.mechanism.strategy).per_step[-kept:]
    return float(row.noise_std * np.sqrt(np.mean(errors**2)) / row.batch_size)


def work(pipe: Connection) -> None:
    """Answer questions from the pipe until it is closed: ("error", field and message) for a wrong one."""
    while True:
        try:
            question = pipe.recv()
        except EOFError:
            return
        try:
            for part in parts(question):
                pipe.send(part)
        except (AnechoicError, ValueError) as wrong:
            pipe.send((f"error {field_of(wrong)}".strip(), str(wrong)))
