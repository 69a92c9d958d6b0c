"""The command line: anechoic demo | train | plan | stream | explain | audit."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from anechoic.errors import AnechoicError

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
_STRATEGIES = ("auto", "identity", "output", "banded_toeplitz", "blt")
_ADJACENCIES = ("zero_out", "replace_one", "add_or_remove")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: 0, 2 for what the caller can mend, 130 after Ctrl-C.

    `audit` returns 1 where it refutes a guarantee.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    options = _parser().parse_args(given)
    options.command_line = shlex.join(["anechoic", *given])
    try:
        code: int = options.run(options) or 0
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # whoever reads the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (AnechoicError, ValueError, OSError) as error:
        print(f"anechoic {options.command}: {_one_line(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"anechoic {options.command}: stopped.", file=sys.stderr)
        return 130


# -- what the commands do ------------------------------------------------------------------------


def _demo(options: argparse.Namespace) -> None:
    if options.streaming:
        from anechoic.streaming.demo import streaming_demo

        streaming_demo(options.out)
        return
    _need("torch", "opacus", "rich", "matplotlib")
    from anechoic.experiments.demo import demo

    demo(
        out=options.out,
        seeds=options.seeds,
        quick=options.quick,
        jobs=options.jobs,
        rates=_tuple(options.lr),
        command=options.command_line,
    )


def _train(options: argparse.Namespace) -> None:
    _need("torch", "opacus", "rich", "matplotlib")
    from anechoic.experiments.train import train

    if options.resume and options.checkpoint is None:
        raise ValueError("--resume needs --checkpoint, the folder to go on from.")
    train(
        data=options.data,
        directory=options.data_dir,
        out=options.out,
        jobs=options.jobs,
        command=options.command_line,
        quick=options.quick,
        checkpoints=options.checkpoint,
        checkpoint_every=options.checkpoint_every,
        resume=options.resume,
        model=options.model,
        batch_size=options.batch_size,
        steps=options.steps,
        epochs=options.epochs,
        sampling=options.sampling,
        unit=options.unit,
        separation=options.separation,
        limit=options.limit,
        local_steps=options.local_steps,
        strategy=options.mechanism,
        epsilons=_tuple(options.epsilon),
        delta=options.delta,
        rates=_tuple(options.lr),
        seeds=options.seeds,
    )


def _plan(options: argparse.Namespace) -> None:
    from anechoic.participation import MinSep
    from anechoic.planning import plan
    from anechoic.report.plan_table import print_plan

    if options.max_participations is not None and options.min_sep is None:
        raise ValueError(
            "--max-participations needs --min-sep, the steps between two participations of one unit."
        )
    promised = None if options.min_sep is None else MinSep(options.min_sep, options.max_participations)
    found = plan(
        examples=options.examples,
        batch_size=options.batch_size,
        epochs=options.epochs,
        steps=options.steps,
        epsilon=options.epsilon,
        delta=options.delta,
        dimension=options.dimension,
        memory_budget=options.memory_budget,
        random_sampling=not options.no_random_sampling,
        participation=promised,
        strategy=options.mechanism,
        clip_norm=options.clip_norm,
        adjacency=options.adjacency,
        unit=options.unit,
        drop_last=options.drop_last,
        accounting=options.accounting,
    )
    print_plan(found, rows=None if options.all else 12)
    if options.json is not None:
        options.json.write_text(found.mechanism.to_json(), encoding="utf-8")
        print(f"\nSaved: {options.json} (anechoic explain {options.json})")


def _explain(options: argparse.Namespace) -> None:
    from anechoic.endless import EndlessMechanism
    from anechoic.mechanism import Mechanism

    text = _text_of(options.file)
    kind = EndlessMechanism if '"endless_format"' in text else Mechanism
    shown = kind.from_json(text).report(options.format, out=options.out, proofs=options.proofs)
    print(shown.rstrip("\n") if options.out is None else f"Saved: {options.out}")


def _audit(options: argparse.Namespace) -> int:
    from anechoic.audit import audit_mechanism, audit_training
    from anechoic.mechanism import Mechanism

    text = _text_of(options.file)
    if '"endless_format"' in text:
        raise ValueError(f"{options.file} is a mechanism without horizon: audit one of as many steps as run.")
    mechanism = Mechanism.from_json(text)
    given = {name: getattr(options, name) for name in ("canaries", "confidence", "delta", "factor", "seed")}
    if options.training:
        _need("torch", "opacus")
        report = audit_training(mechanism, **given)
    else:
        report = audit_mechanism(mechanism, **given)
    print(report)
    if options.json is not None:
        options.json.write_text(report.to_json(), encoding="utf-8")
        print(f"\nSaved: {options.json}")
    return int(report.violated)


def _stream(options: argparse.Namespace) -> None:
    from anechoic.streaming.command import stream_file

    stream_file(options)


def _text_of(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is not a mechanism file: {error}.") from error


# -- the parser ----------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="anechoic", description="Correlated noise mechanisms for differential privacy."
    )
    parser.add_argument("--version", action="version", version=f"anechoic {_version()}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_demo(commands)
    _add_train(commands)
    _add_plan(commands)
    _add_stream(commands)

    explain = commands.add_parser("explain", help="print the guarantee of a mechanism file")
    explain.add_argument("file", type=Path, metavar="MECHANISM.json")
    explain.add_argument("--format", choices=("text", "markdown", "html", "json"), default="text")
    explain.add_argument("--out", type=Path, metavar="FILE", help="write it here instead of printing it")
    explain.add_argument("--proofs", default="docs/proofs", metavar="BASE", help="where its links lead")
    explain.set_defaults(run=_explain)
    _add_audit(commands)
    return parser


def _add_demo(commands: Any) -> None:
    demo = commands.add_parser("demo", help="private training on 327,346 flights, with a report")
    _add_running(demo, Path("demo-report"))
    demo.add_argument("--seeds", type=_count, help="seeds of each arm (default: 5)")
    demo.add_argument("--streaming", action="store_true", help="releases of every hour instead of training")
    demo.set_defaults(run=_demo)


def _add_train(commands: Any) -> None:
    train = commands.add_parser("train", help="compare mechanisms on a data set, over several epochs")
    train.add_argument("--data", choices=("fashion-mnist", "flights"), required=True)
    train.add_argument("--data-dir", metavar="DIR", help="folder with the four files of Fashion-MNIST")
    train.add_argument("--model", choices=("logistic", "cnn"), help="default: logistic")
    train.add_argument("--epsilon", type=float, nargs="+", help="default: 1 (flights: 0.1 0.3 1)")
    train.add_argument("--delta", type=float, help="default: 1e-6")
    length = train.add_mutually_exclusive_group()
    length.add_argument("--steps", type=_count, help="default: 2048")
    length.add_argument("--epochs", type=_count, help="passes, instead of --steps")
    train.add_argument("--batch-size", type=_count, help="default: 469")
    train.add_argument("--sampling", choices=("fixed", "poisson", "both"), help="default: fixed")
    train.add_argument(
        "--unit", choices=("flight", "tail"), help="of the flights: what is protected, tail for the aircraft"
    )
    train.add_argument("--separation", type=_count, metavar="STEPS", help="of an aircraft's participations")
    train.add_argument("--limit", type=_count, metavar="TIMES", help="most participations of an aircraft")
    train.add_argument("--local-steps", type=_count, help="of an aircraft on its own flights (default: 1)")
    train.add_argument("--mechanism", choices=_STRATEGIES, help="of the planned arm (default: auto)")
    train.add_argument("--seeds", type=_count, help="default: 1 (flights: 5)")
    _add_running(train, Path("train-report"))
    train.add_argument("--checkpoint", type=Path, metavar="DIR", help="save the state of every run here")
    train.add_argument("--checkpoint-every", type=_count, default=256, metavar="STEPS", help="default: 256")
    train.add_argument("--resume", action="store_true", help="go on from --checkpoint")
    train.set_defaults(run=_train)


def _add_running(command: argparse.ArgumentParser, out: Path) -> None:
    command.add_argument("--out", type=Path, default=out, metavar="DIR", help=f"default: {out}")
    command.add_argument("--lr", type=float, nargs="+", help="the grid of learning rates, one for all arms")
    command.add_argument("--jobs", type=_count, default=min(os.cpu_count() or 1, 8), help="worker processes")
    command.add_argument("--quick", action="store_true", help="a slice of the data, for a first look")


def _add_plan(commands: Any) -> None:
    plan = commands.add_parser("plan", help="compare mechanisms for a training setting, and choose one")
    plan.add_argument("--examples", type=_count, required=True)
    plan.add_argument("--batch-size", type=_count, nargs="+", required=True, help="several are compared")
    length = plan.add_mutually_exclusive_group(required=True)
    length.add_argument("--epochs", type=_count)
    length.add_argument("--steps", type=_count)
    plan.add_argument("--epsilon", type=float, required=True)
    plan.add_argument("--delta", type=float, required=True)
    plan.add_argument("--dimension", type=_count, help="trainable parameters, for the memory of the noise")
    plan.add_argument(
        "--memory-budget", type=_bytes, metavar="BYTES", help="for the noise, such as 2GB or 512MiB"
    )
    plan.add_argument("--no-random-sampling", action="store_true", help="batches come in a fixed order")
    plan.add_argument(
        "--min-sep", type=_count, metavar="STEPS", help="promised: steps between two participations"
    )
    plan.add_argument("--max-participations", type=_count, help="promised, with --min-sep")
    plan.add_argument("--mechanism", choices=_STRATEGIES, default="auto", help="compare this class only")
    plan.add_argument("--clip-norm", type=float, default=1.0)
    plan.add_argument("--adjacency", choices=_ADJACENCIES, default="zero_out")
    plan.add_argument("--unit", default="example", help="what is protected (default: example)")
    plan.add_argument("--drop-last", action="store_true", help="a pass drops its incomplete last batch")
    plan.add_argument(
        "--accounting",
        choices=("deterministic", "verified"),
        default="deterministic",
        help="verified compares schemes that only Monte Carlo accounts for, too (minutes)",
    )
    plan.add_argument("--all", action="store_true", help="show every candidate")
    plan.add_argument("--json", type=Path, metavar="FILE", help="save the chosen mechanism")
    plan.set_defaults(run=_plan)


def _add_stream(commands: Any) -> None:
    stream = commands.add_parser("stream", help="release running statistics of a file, step by step")
    stream.add_argument("--input", required=True, metavar="FILE", help=".csv, .jsonl, .parquet, or - for CSV")
    stream.add_argument("--time", required=True, metavar="COLUMN", help="ISO 8601, or seconds since 1970")
    stream.add_argument("--every", required=True, metavar="LENGTH", help="of a step: 15min, 1h, 1d")
    stream.add_argument("--start", metavar="TIME", help="of step 0; public (default: from the first record)")
    stream.add_argument("--until", metavar="TIME", help="steps that end by then are released")
    stream.add_argument("--follow", metavar="PAUSE", help="the file grows: look again after 30s, 5min, …")
    stream.add_argument("--timezone", default="UTC", metavar="ZONE", help="of times without offset")
    stream.add_argument("--count", action="store_true", help="how many records")
    for name, form in (
        ("sum", "COLUMN:BOUND"),
        ("mean", "COLUMN:LOW:HIGH"),
        ("histogram", "COLUMN:CATEGORY,…"),
        ("quantiles", "COLUMN:LOW:HIGH:WIDTH"),
        ("distribution", "COLUMN:LOW:HIGH:WIDTH"),
    ):
        stream.add_argument(f"--{name}", action="append", default=[], metavar=form)
    stream.add_argument("--epsilon", type=float, required=True)
    stream.add_argument("--delta", type=float, default=1e-6, help="default: 1e-6")
    stream.add_argument("--horizon", type=_count, metavar="STEPS", help="default: none")
    stream.add_argument("--unit", metavar="COLUMN", help="ids of what is protected (default: each record)")
    stream.add_argument("--max-participations", type=_count, help="of one unit, with --unit (default: 1)")
    stream.add_argument("--min-sep", type=_count, metavar="STEPS", help="between two of them (default: 1)")
    stream.add_argument("--per-step", type=_count, default=1, help="records of a unit in a step (default: 1)")
    stream.add_argument("--state", type=Path, metavar="FILE", help="goes on where it stopped; secret")
    stream.add_argument("--counter", type=Path, metavar="FILE", help="shows an older state put back")
    stream.add_argument("--key-env", metavar="NAME", help="environment variable with the key, 64 hex digits")
    stream.add_argument("--adopt", action="store_true", help="take a state file that was moved or copied")
    stream.add_argument("--out", type=Path, metavar="FILE", help="all releases: .csv, .jsonl or .parquet")
    stream.add_argument("--report", type=Path, metavar="FILE", help="a page about them")
    stream.set_defaults(run=_stream)


def _add_audit(commands: Any) -> None:
    audit = commands.add_parser(
        "audit", help="try to refute the guarantee of a mechanism file; exit code 1 if it is refuted"
    )
    audit.add_argument("file", type=Path, metavar="MECHANISM.json")
    audit.add_argument(
        "--training", action="store_true", help="through PrivacyEngine, instead of the noise stream alone"
    )
    audit.add_argument("--canaries", type=_count, default=1000, help="default: 1000")
    audit.add_argument("--confidence", type=float, default=0.95, help="default: 0.95")
    audit.add_argument("--delta", type=float, help="default: the mechanism's own")
    audit.add_argument(
        "--factor", type=float, default=1.2, help="lack of noise for which powers are stated (default: 1.2)"
    )
    audit.add_argument("--seed", type=int, help="of canaries and who is put in; the noise has a fresh key")
    audit.add_argument("--json", type=Path, metavar="FILE", help="save the report")
    audit.set_defaults(run=_audit)


# -- values --------------------------------------------------------------------------------------


def _count(text: str) -> int:
    """An integer >= 1; underscores and commas may group its digits."""
    try:
        value = int(text.replace(",", "_"))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer") from error
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} must be at least 1")
    return value


def _bytes(text: str) -> int:
    """A number of bytes, with a unit: 2GB is 2·10⁹, 2GiB is 2·2³⁰."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    if match is None or match[2].upper() not in _UNITS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 2GB, 512MiB or 1000000")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def _tuple(values: Sequence[float] | None) -> tuple[float, ...] | None:
    return None if values is None else tuple(values)


def _need(*modules: str) -> None:
    """Refuse to start without the packages of the extras.

    Raises:
        AnechoicError: naming what to install.
    """
    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        raise AnechoicError(
            f"this command needs {', '.join(missing)}, which is not installed: pip install"
            " 'anechoic[torch,plot]'"
        )


def _one_line(error: BaseException) -> str:
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split()) or type(error).__name__


def _version() -> str:
    from importlib import metadata

    try:
        return metadata.version("anechoic")
    except metadata.PackageNotFoundError:
        return "(not installed as a package)"


if __name__ == "__main__":
    raise SystemExit(main())
