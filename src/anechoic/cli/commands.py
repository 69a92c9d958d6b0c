"""Commands of the command line."""

from __future__ import annotations

import argparse
import sys

from anechoic._patience import patience
from anechoic.cli.progress import naming, need, text_of
from anechoic.runs.atomic_files import check_writable

#: Candidates that a table of a plan shows, and options that `plan` has too.
ROWS = 12
_PLANNED = ["examples", "batch_size", "epochs", "steps", "epsilon", "noise_multiplier", "delta", "dimension"]
_PLANNED += ["memory_budget", "keep", "clip_norm", "adjacency", "unit"]


def demo(options: argparse.Namespace) -> None:
    need("torch", "rich", "matplotlib", "jinja2", extras="demo")
    from anechoic.demo.late_flights import demo

    demo(
        out=options.out,
        seeds=options.seeds,
        quick=options.quick,
        jobs=options.jobs,
        command=options.command_line,
    )


def plan(options: argparse.Namespace) -> None:
    from anechoic.mechanism.weak_delta import odd_epsilon, weak_delta
    from anechoic.participation import MinSep
    from anechoic.planning.compare import plan
    from anechoic.planning.families import family
    from anechoic.planning.page import checked_kind, write_plan
    from anechoic.planning.table import paragraphs, table
    from anechoic.planning.update import UpdateRule

    if options.max_participations is not None and options.min_sep is None:
        raise ValueError(
            "--max-participations needs --min-sep, the steps between two participations of one unit."
        )
    if options.momentum and options.optimizer == "adam":
        raise ValueError(f"--momentum {options.momentum:g} is of SGD: leave it out with --optimizer adam.")
    promised = None if options.min_sep is None else MinSep(options.min_sep, options.max_participations)
    if options.json is not None:
        check_writable(options.json)
    if options.out is not None:
        check_writable(checked_kind(options.out))
        need("matplotlib", "jinja2", extras="plot")
    weak = weak_delta(options.delta, options.examples, options.unit)
    for doubt in filter(None, (weak, odd_epsilon(options.epsilon))):
        print(f"anechoic plan: {doubt}.", file=sys.stderr)
    found = plan(
        **{name: getattr(options, name) for name in _PLANNED},
        random_sampling=not options.no_random_sampling,
        participation=promised,
        scheduler=options.schedule,
        strategy=options.mechanism,
        optimizer=UpdateRule("sgd", options.momentum) if options.optimizer == "sgd" else "adam",
    )
    lines = list(found.lines)
    if not options.all:  # the first ones, the chosen one, and the best with independent noise
        plain = next((row for row in found.rows if family(row.mechanism.strategy) == "identity"), None)
        always = [id(row) for row in (plain, found.drawn)]
        lines = [row for i, row in enumerate(lines) if i < ROWS or row.chosen or id(row) in always]
    left = len(found.lines) - len(lines)
    more = [f"{left} more candidates, ranked below those shown: --all shows them."] * (left > 0)
    said = found.why() if options.why else paragraphs(found.sentences("--why"), "\n")
    print("\n".join([*table(lines), *more, "", said]))
    if options.json is not None:
        options.json.write_text(found.mechanism.to_json(), encoding="utf-8")
        print(f"\nSaved: {options.json} (anechoic explain {options.json})")
    if options.out is not None:
        write_plan(found, options.out, options.command_line)
        print(f"\nSaved: {options.out}")
    if weak:
        print(f"\nNot to be relied on: {weak}.")


def app(options: argparse.Namespace) -> None:
    need("nicegui", "matplotlib", "jinja2", extras="app")
    from anechoic.app.page import serve

    serve(options.port, show=not options.no_browser)


def explain(options: argparse.Namespace) -> None:
    from anechoic.mechanism.endless import EndlessMechanism
    from anechoic.mechanism.mechanism import Mechanism

    if options.out is not None:
        check_writable(options.out)
    text = text_of(options.file)
    kind = EndlessMechanism if '"endless_format"' in text else Mechanism
    with naming(options.file):
        shown = kind.from_json(text).report(options.format, out=options.out, proofs=options.proofs)
    saved = f"Saved: {options.out} (links to proofs lead to {options.proofs}; --proofs names another place)"
    print(shown.rstrip("\n") if options.out is None else saved)


def audit(options: argparse.Namespace) -> int:
    from anechoic.audit import audit_mechanism
    from anechoic.mechanism.mechanism import Mechanism

    text = text_of(options.file)
    if '"endless_format"' in text:
        raise ValueError(f"{options.file} is a mechanism without horizon: audit one of as many steps as run.")
    if options.json is not None:
        check_writable(options.json)
    with naming(options.file):
        mechanism = Mechanism.from_json(text)
    given = {name: getattr(options, name) for name in ("canaries", "confidence", "delta", "seed")}
    if options.training:
        need("torch", extras="torch")
        from anechoic.torch import audit_training

        with patience("training, again and again, to be attacked"):
            report = audit_training(mechanism, **given)
    else:
        with patience("attacking the mechanism"):
            report = audit_mechanism(mechanism, **given)
    print(report)
    if options.json is not None:
        options.json.write_text(report.to_json(), encoding="utf-8")
        print(f"\nSaved: {options.json}")
    return int(report.violated)


def stream(options: argparse.Namespace) -> None:
    need("polars", extras="streaming")
    from anechoic.streaming.command import stream_file

    stream_file(options)


def budget(options: argparse.Namespace) -> None:
    from anechoic.budget.book import BudgetBook
    from anechoic.keys import key_in_environment

    key = None if options.key_env is None else key_in_environment(options.key_env)
    book = BudgetBook(options.book, options.data or "any", key=key)
    if options.what == "grant":
        given = {name: getattr(options, name) for name in ("epsilon", "delta", "unit", "adjacency")}
        book.grant(**given, amplified=tuple(options.amplified))
    elif options.what == "cancel":
        book.cancel(options.token)
    print(book.show(every=options.data is None))
