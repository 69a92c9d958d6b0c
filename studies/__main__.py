"""Studies beyond the demo: python -m studies train | federate | papers."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from anechoic._patience import patience
from anechoic.cli.main import run_command
from anechoic.cli.parser import STRATEGIES
from anechoic.cli.progress import need
from anechoic.cli.values import count


def _check_alone(name: str, options: argparse.Namespace) -> None:
    """Refuse options beside one that takes none of them."""
    own = (name, "command", "command_line", "run", "usual")
    given = [
        "--" + other.replace("_", "-")
        for other, value in vars(options).items()
        if other not in own and value != options.usual(other)
    ]
    if given:
        raise ValueError(
            f"{', '.join(given)} with --{name}, which prints settings as they were published: give it alone."
        )


def train(options: argparse.Namespace) -> None:
    need("torch", "opacus", extras="demo")
    from studies.train import train

    train(
        out=options.out,
        jobs=options.jobs,
        command=options.command_line,
        quick=options.quick,
        sampling=options.sampling,
        separation=options.separation,
        limit=options.limit,
        strategy=options.mechanism,
        epsilons=_as_tuple(options.epsilon),
        delta=options.delta,
        rates=_as_tuple(options.lr),
        seeds=options.seeds,
    )


def federate(options: argparse.Namespace) -> None:
    if options.deployments:
        _check_alone("deployments", options)
        from studies.federated.deployments import deployments_text

        with patience("optimising strategies for the published settings"):
            print(deployments_text())
        return
    need("torch", "opacus", extras="demo")
    from studies.federated.command import federate

    if options.resume and options.checkpoint is None:
        raise ValueError("--resume needs --checkpoint, the folder to go on from.")
    federate(
        data=options.data,
        directory=options.data_dir,
        out=options.out,
        jobs=options.jobs,
        command=options.command_line,
        quick=options.quick,
        clients=options.clients,
        epsilons=_as_tuple(options.epsilon),
        seeds=options.seeds,
        rates=_as_tuple(options.lr),
        rounds={
            name: getattr(options, name)
            for name in ("rounds", "clients_per_round", "separation", "max_participations")
        },
        checkpoints=options.checkpoint,
        resume=options.resume,
    )


def papers(options: argparse.Namespace) -> None:
    need("matplotlib", extras="plot")
    from studies.published import EXHIBITS, TRAINED, TRAINED_ON_TEXT, exhibit

    if options.list:
        for name, make in (EXHIBITS | TRAINED | TRAINED_ON_TEXT).items():
            print(f"{name:20} {(make.__doc__ or '').splitlines()[0]}")
        return
    for name in options.names or EXHIBITS:
        found = exhibit(name, data=options.data_dir, folder=options.out / f"{name}-runs")
        print(found.text(), *found.write(options.out), sep="\n", flush=True)


def parser_of_all() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m studies", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_train(commands)
    _add_federate(commands)
    _add_papers(commands)
    return parser


def _as_tuple(values: Sequence[float] | None) -> tuple[float, ...] | None:
    return None if values is None else tuple(values)


def _add_running(command: argparse.ArgumentParser, out: Path) -> None:
    command.add_argument("--out", type=Path, default=out, metavar="DIR", help=f"default: {out}")
    command.add_argument("--lr", type=float, nargs="+", help="the grid of learning rates, one for all arms")
    command.add_argument("--jobs", type=count, default=min(os.cpu_count() or 1, 8), help="worker processes")
    command.add_argument("--quick", action="store_true", help="a slice of the data, for a first look")


def _add_train(commands: Any) -> None:
    train_ = commands.add_parser("train", help="what it costs to protect aircraft, beside flights")
    train_.add_argument("--data", choices=("flights",), default="flights")
    train_.add_argument("--unit", choices=("tail",), default="tail", help="the aircraft")
    train_.add_argument("--epsilon", type=float, nargs="+", help="default: 1 4 (sampled: 1)")
    train_.add_argument("--delta", type=float, help="default: 1e-6")
    train_.add_argument("--sampling", choices=("fixed", "poisson"), default="fixed", help="default: fixed")
    train_.add_argument("--separation", type=count, metavar="STEPS", help="of an aircraft's participations")
    train_.add_argument("--limit", type=count, metavar="TIMES", help="most participations of an aircraft")
    train_.add_argument("--mechanism", choices=STRATEGIES, help="of the planned arm (default: auto)")
    train_.add_argument("--seeds", type=count, help="default: 2")
    _add_running(train_, Path("train-report"))
    train_.set_defaults(run=train)


def _add_federate(commands: Any) -> None:
    federate_ = commands.add_parser(
        "federate", help="compare noise for whole clients of a federation, simulated on this machine"
    )
    what = federate_.add_mutually_exclusive_group(required=True)
    what.add_argument("--data", choices=("fashion-mnist", "changelogs", "docstrings"))
    what.add_argument(
        "--deployments", action="store_true", help="print published settings with the errors predicted here"
    )
    federate_.add_argument("--data-dir", metavar="DIR", help="folder of the data; texts have a usual place")
    federate_.add_argument("--clients", type=count, help="to spread the images over (default: 2000)")
    federate_.add_argument("--epsilon", type=float, nargs="+", help="default: 1 2 4 8 16")
    federate_.add_argument("--rounds", type=count, help="default: 720, of text 240")
    federate_.add_argument("--clients-per-round", type=count, help="default: 32")
    federate_.add_argument(
        "--separation", type=count, metavar="ROUNDS", help="that a client rests; default: 48"
    )
    federate_.add_argument("--max-participations", type=count, help="of a client; default: 15, of text 5")
    federate_.add_argument("--seeds", type=count, help="of the figures (default: 3)")
    _add_running(federate_, Path("federate-report"))
    federate_.add_argument("--checkpoint", type=Path, metavar="DIR", help="keep outcomes of runs here")
    federate_.add_argument("--resume", action="store_true", help="go on from --checkpoint")
    federate_.set_defaults(run=federate, usual=federate_.get_default)


def _add_papers(commands: Any) -> None:
    papers_ = commands.add_parser(
        "papers", help="figures and tables of the papers on learning, computed again"
    )
    papers_.add_argument(
        "names", nargs="*", metavar="NAME", help="such as 000-2; by default all that train nothing"
    )
    papers_.add_argument("--out", type=Path, default=Path("papers"), metavar="DIR", help="default: papers")
    papers_.add_argument("--data-dir", metavar="DIR", help="folder of the images, for what trains on them")
    papers_.add_argument("--list", action="store_true", help="print the names, and stop")
    papers_.set_defaults(run=papers)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    return run_command(parser_of_all(), arguments)


if __name__ == "__main__":
    sys.exit(main())
