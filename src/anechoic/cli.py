"""The command line: anechoic demo | train | plan | explain | audit."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from anechoic.errors import AnechoicError, MismatchError

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
#: Seconds after which a command says what it is at.
PATIENCE = 3.0
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
    _need("torch", "opacus", "rich", "matplotlib")
    from anechoic.lab.studies.demo import demo

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
    from anechoic.lab.studies.train import train

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
    from anechoic.lab.report.plan_table import print_plan
    from anechoic.mechanism.weak_delta import weak_delta
    from anechoic.participation import MinSep
    from anechoic.planning import plan
    from anechoic.sampling.base import plural

    if options.max_participations is not None and options.min_sep is None:
        raise ValueError(
            "--max-participations needs --min-sep, the steps between two participations of one unit."
        )
    promised = None if options.min_sep is None else MinSep(options.min_sep, options.max_participations)
    _check_writable(options.json)
    if weak := weak_delta(options.delta, options.examples, options.unit):
        print(f"anechoic plan: {weak}.", file=sys.stderr)
    with _patience(f"comparing mechanisms for {options.examples:,} {plural(options.unit)}"):
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
    from anechoic.mechanism.endless import EndlessMechanism
    from anechoic.mechanism.mechanism import Mechanism

    _check_writable(options.out)
    text = _text_of(options.file)
    kind = EndlessMechanism if '"endless_format"' in text else Mechanism
    with _naming(options.file), _patience(f"computing the guarantee of {options.file} again"):
        shown = kind.from_json(text).report(options.format, out=options.out, proofs=options.proofs)
    saved = f"Saved: {options.out} (links to proofs lead to {options.proofs}; --proofs names another place)"
    print(shown.rstrip("\n") if options.out is None else saved)


def _audit(options: argparse.Namespace) -> int:
    from anechoic.audit import audit_mechanism
    from anechoic.mechanism.mechanism import Mechanism

    text = _text_of(options.file)
    if '"endless_format"' in text:
        raise ValueError(f"{options.file} is a mechanism without horizon: audit one of as many steps as run.")
    _check_writable(options.json)
    with _naming(options.file), _patience(f"computing the guarantee of {options.file} again"):
        mechanism = Mechanism.from_json(text)
    given = {name: getattr(options, name) for name in ("canaries", "confidence", "delta", "factor", "seed")}
    if options.training:
        _need("torch", "opacus")
        from anechoic.torch import audit_training

        report = audit_training(mechanism, **given)
    else:
        report = audit_mechanism(mechanism, **given)
    print(report)
    if options.json is not None:
        options.json.write_text(report.to_json(), encoding="utf-8")
        print(f"\nSaved: {options.json}")
    return int(report.violated)


@contextmanager
def _patience(doing: str) -> Iterator[None]:
    """Say on a terminal's stderr what takes so long, once it does."""

    def say() -> None:
        print(f"anechoic: {doing}; this can take minutes. Ctrl-C stops it.", file=sys.stderr, flush=True)

    timer = threading.Timer(PATIENCE, say)
    if sys.stderr.isatty():
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def _naming(file: Path) -> Iterator[None]:
    """Name the file that is no mechanism, or another one than it says."""
    try:
        yield
    except MismatchError as error:
        raise MismatchError(f"{file}: {error}") from error


def _check_writable(file: Path | None) -> None:
    """Refuse a file that could not be written, before the work whose result it is for.

    Raises:
        ValueError: naming the folder that is missing, or in the way.
    """
    if file is not None and not file.parent.is_dir():
        raise ValueError(f"{file} cannot be written: {file.parent} is no folder. Make it, or name another.")
    if file is not None and file.is_dir():
        raise ValueError(f"{file} cannot be written: it is a folder. Name a file in it.")


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
    demo.add_argument("--seeds", type=_count, help="seeds of each arm (default: 3)")
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
    train.add_argument("--seeds", type=_count, help="default: 1 (flights: 3)")
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
    """An integer >= 1; underscores and commas may group its digits, and 1e6 is a million."""
    grouped = text.replace(",", "_")
    try:
        value = int(Decimal(grouped)) if re.fullmatch(r"[\d_.]+[eE]\+?\d{1,2}", grouped) else int(grouped)
        if value != Decimal(grouped):
            raise ValueError(text)
    except (ValueError, ArithmeticError) as error:
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
