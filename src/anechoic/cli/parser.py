"""The commands and their options."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from anechoic.cli import commands as do
from anechoic.cli.progress import version
from anechoic.cli.values import count, format_and_file, kept, size, steps_over
from anechoic.statement.formats import FORMATS
from anechoic.statement.theorem import PROOFS

STRATEGIES = ("auto", "identity", "output", "banded_toeplitz", "banded", "blt", "dense")

_ADJACENCIES = ("zero_out", "replace_one", "add_or_remove")


def parser_of_all() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="anechoic", description="Correlated noise mechanisms for differential privacy."
    )
    parser.add_argument("--version", action="version", version=f"anechoic {version()}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_demo(commands)
    _add_plan(commands)
    _add_stream(commands)
    app = commands.add_parser("app", help="plan in the browser, on this machine alone")
    app.add_argument("--port", type=count, default=8080, help="of 127.0.0.1 (default: 8080)")
    app.add_argument("--no-browser", action="store_true", help="print the address, and open nothing")
    app.set_defaults(run=do.app)

    explain = commands.add_parser("explain", help="print the guarantee of a mechanism file")
    explain.add_argument("file", type=Path, metavar="MECHANISM.json")
    explain.add_argument("--format", choices=FORMATS, default="text", help="default: text")
    explain.add_argument("--out", type=Path, metavar="FILE", help="write it here instead of printing it")
    explain.add_argument("--proofs", default=PROOFS, metavar="BASE", help="where its links lead")
    explain.set_defaults(run=do.explain)
    _add_audit(commands)
    _add_budget(commands)
    return parser


def _add_demo(commands: Any) -> None:
    demo = commands.add_parser("demo", help="private training on 327,346 flights, with a report")
    demo.add_argument(
        "--out", type=Path, default=Path("demo-report"), metavar="DIR", help="default: demo-report"
    )
    demo.add_argument("--jobs", type=count, default=min(os.cpu_count() or 1, 8), help="worker processes")
    demo.add_argument("--quick", action="store_true", help="a slice of the data, for a first look")
    demo.add_argument("--seeds", type=count, help="seeds of each arm (default: 3)")
    demo.set_defaults(run=do.demo)


def _add_plan(commands: Any) -> None:
    plan = commands.add_parser(
        "plan",
        help="compare mechanisms for a training setting, and choose one",
        description="Compare mechanisms for a training setting, and choose one.",
        usage="anechoic plan --examples 60000 --batch-size 512 --epochs 10 --epsilon 2 --delta 1e-6",
    )
    add = plan.add_argument
    add("--examples", type=count, required=True)
    add("--batch-size", type=count, nargs="+", required=True, help="several are compared")
    length = plan.add_mutually_exclusive_group(required=True)
    length.add_argument("--epochs", type=count, nargs="+", help="several are compared")
    length.add_argument("--steps", type=count)
    noise = plan.add_mutually_exclusive_group(required=True)
    noise.add_argument("--epsilon", type=float)
    noise.add_argument(
        "--noise-multiplier", type=float, help="of independent noise, whose epsilon every candidate keeps"
    )
    add("--delta", type=float, required=True)
    add("--dimension", type=count, help="trainable parameters, for the memory of the noise")
    add("--memory-budget", type=size, metavar="BYTES", help="for the noise, such as 2GB or 512MiB")
    add("--no-random-sampling", action="store_true", help="batches come in a fixed order")
    add("--min-sep", type=count, metavar="STEPS", help="promised: steps between two participations")
    add("--max-participations", type=count, help="promised, with --min-sep")
    add("--mechanism", choices=STRATEGIES, default="auto", help="compare this class only")
    add("--optimizer", choices=("sgd", "adam"), default="sgd", help="adam: it divides by the noise of a step")
    add("--momentum", type=float, default=0.0, help="of SGD: what its steps add up to is planned for")
    add(
        "--schedule",
        choices=("constant", "cooldown", "cosine", "linear"),
        default="constant",
        help="of the learning rate, over the run",
    )
    add(
        "--keep",
        type=kept,
        default="last",
        metavar="WHAT",
        help="last (default), all, average, or the weight of the last iterate",
    )
    add("--clip-norm", type=float, default=1.0)
    add("--adjacency", choices=_ADJACENCIES, default="zero_out")
    add("--unit", default="example", help="what is protected (default: example)")
    add("--all", action="store_true", help="show every candidate")
    add("--why", action="store_true", help="show the reasons, and what the columns mean")
    add("--json", type=Path, metavar="FILE", help="save the chosen mechanism")
    add("--out", type=Path, metavar="FILE", help="a page about the plan (.html), or its chart (.svg, .png)")
    plan.set_defaults(run=do.plan)


def _add_stream(commands: Any) -> None:
    stream = commands.add_parser(
        "stream",
        help="release running statistics of a file, step by step",
        description="Release running statistics of a file, step by step.",
        usage="anechoic stream --input visits.csv --time when --every day --count --epsilon 1",
    )
    add = stream.add_argument
    add("--input", required=True, metavar="FILE", help=".csv, .jsonl (or .gz), .parquet, or -")
    add("--encoding", default="utf-8", metavar="NAME", help="of text, such as latin-1")
    add("--separator", metavar="MARK", help="of fields (default: that of the head)")
    add("--decimal", default=".", choices=(".", ","), metavar="MARK", help="before tenths: . (default) or ,")
    add("--thousands", default="", metavar="MARK", help="between groups of three digits")
    add("--time", required=True, metavar="COLUMN", help="ISO 8601, or seconds since 1970")
    add("--time-format", metavar="FORM", help="s, ms, us, ns, excel, or as %%d.%%m.%%Y %%H:%%M")
    add("--every", required=True, metavar="STEP", help="day, week, month, quarter, year; or 15min, 1h")
    add("--over", type=steps_over, metavar="STEPS", help="1, the last 24, … or all (default)")
    add("--start", metavar="TIME", help="of step 0; public (default: from the first record)")
    add("--until", metavar="TIME", help="steps that end by then are released")
    add("--force", action="store_true", help="steps that end after now by this clock, too")
    add(
        "--bad-share",
        type=float,
        default=0.01,
        metavar="SHARE",
        help="of records that may be left out (default: .01); above it the exit code is 3",
    )
    add("--timezone", default="UTC", metavar="ZONE", help="of times without offset, and of days")
    add("--count", action="store_true", help="how many records")
    for name, form in (
        ("sum", "COLUMN:BOUND"),
        ("mean", "COLUMN:LOW:HIGH"),
        ("histogram", "COLUMN:CATEGORY,…"),
        ("quantiles", "COLUMN:LOW:HIGH:WIDTH"),
        ("distribution", "COLUMN:LOW:HIGH:WIDTH"),
    ):
        add(f"--{name}", action="append", default=[], metavar=form)
    add("--by", metavar="COLUMN:A,B,…", help="each of these by groups, at the noise of one")
    add("--epsilon", type=float, required=True)
    add("--delta", type=float, default=1e-6, help="default: 1e-6")
    add("--horizon", type=count, metavar="STEPS", help="default: none")
    add("--unit", metavar="COLUMN", help="ids of what is protected (default: each record)")
    add("--max-participations", type=count, help="of one unit, with --unit (default: 1)")
    add("--min-sep", type=count, metavar="STEPS", help="between two of them (default: 1)")
    add("--per-step", type=count, default=1, help="records of a unit in a step (default: 1)")
    add("--state", type=Path, metavar="FILE", help="goes on where it stopped")
    add("--adopt", action="store_true", help="take a state file that was moved or copied")
    add("--book", metavar="BOOK", help="a budget book, file or postgresql://…, that is charged")
    add("--data", metavar="NAME", help="of the data in --book")
    add("--book-key-env", metavar="NAME", help="variable with the book's key, 64 hex digits")
    add("--out", type=Path, metavar="FILE", help="all releases: .csv, .jsonl or .parquet")
    add(
        "--statement",
        type=format_and_file,
        action="append",
        default=[],
        metavar="FORMAT=FILE",
        help="for a reviewer, in a format of explain; may be repeated",
    )
    stream.set_defaults(run=do.stream)


def _add_budget(commands: Any) -> None:
    budget = commands.add_parser("budget", help="a book of what was spent on which data").add_subparsers(
        dest="what", required=True, metavar="WHAT"
    )
    for what, said in (
        ("show", "budgets, and who spent what"),
        ("grant", "allow a budget, or more of it; decided without looking at what was released"),
        ("cancel", "give a reservation back under which nothing was released"),
    ):
        one = budget.add_parser(what, help=said)
        add = one.add_argument
        add("book", metavar="BOOK", help="a file, or postgresql://…")
        add("data", metavar="DATA", nargs="?" if what == "show" else None, help="its name")
        add("--key-env", metavar="NAME", help="variable with the book's key, 64 hex digits")
        one.set_defaults(run=do.budget)
        if what == "cancel":
            add("token", metavar="TOKEN", help="of the reservation, as show prints it")
        if what == "grant":
            add("--epsilon", type=float, required=True, help="of everything together")
            add("--delta", type=float, required=True)
            add("--unit", default="example", help="what is protected (default: example)")
            add("--adjacency", choices=_ADJACENCIES, default="zero_out")
            add(
                "--amplified",
                type=float,
                nargs=2,
                default=(0.0, 0.0),
                metavar=("EPSILON", "DELTA"),
                help="the part of it for runs that count by their own epsilon and delta (default: none)",
            )


def _add_audit(commands: Any) -> None:
    audit = commands.add_parser(
        "audit", help="try to refute the guarantee of a mechanism file; exit code 1 if it is refuted"
    )
    add = audit.add_argument
    add("file", type=Path, metavar="MECHANISM.json")
    add("--training", action="store_true", help="through PrivacyEngine, instead of the noise stream alone")
    add("--canaries", type=count, default=1000, help="default: 1000")
    add("--confidence", type=float, default=0.95, help="default: 0.95")
    add("--delta", type=float, help="default: the mechanism's own")
    add("--seed", type=int, help="of canaries and who is put in; the noise has a fresh key")
    add("--json", type=Path, metavar="FILE", help="save the report")
    audit.set_defaults(run=do.audit)
