"""What the commands do."""

from __future__ import annotations

import argparse
import sys
from functools import partial

from anechoic.cli.manners import check_writable, naming, need, patience, text_of
from anechoic.cli.values import as_tuple

# -- what the commands do ------------------------------------------------------------------------


def demo(options: argparse.Namespace) -> None:
    if options.streaming:
        from anechoic.lab.studies.stream import streaming_demo

        streaming_demo(options.out)
        return
    need("torch", "opacus", "rich", "matplotlib")
    from anechoic.lab.studies.demo import demo

    demo(
        out=options.out,
        seeds=options.seeds,
        quick=options.quick,
        jobs=options.jobs,
        rates=as_tuple(options.lr),
        command=options.command_line,
    )


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


def _check_resume(options: argparse.Namespace) -> None:
    if options.resume and options.checkpoint is None:
        raise ValueError("--resume needs --checkpoint, the folder to go on from.")


def train(options: argparse.Namespace) -> None:
    need("torch", "opacus", "rich", "matplotlib")
    from anechoic.lab.studies.train import train

    _check_resume(options)
    train(
        data=options.data,
        directory=options.data_dir,
        out=options.out,
        jobs=options.jobs,
        command=options.command_line,
        quick=options.quick,
        damped=options.damped,
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
        epsilons=as_tuple(options.epsilon),
        delta=options.delta,
        rates=as_tuple(options.lr),
        seeds=options.seeds,
    )


def federate(options: argparse.Namespace) -> None:
    if options.deployments:
        _check_alone("deployments", options)
        from anechoic.lab.studies.federated.deployments import deployments_text

        with patience("optimising strategies for the published settings"):
            print(deployments_text())
        return
    need("torch", "opacus", "rich", "matplotlib")
    from anechoic.lab.studies.federated.command import federate

    _check_resume(options)
    federate(
        data=options.data,
        directory=options.data_dir,
        out=options.out,
        jobs=options.jobs,
        command=options.command_line,
        quick=options.quick,
        clients=options.clients,
        epsilons=as_tuple(options.epsilon),
        seeds=options.seeds,
        rates=as_tuple(options.lr),
        rounds={
            name: getattr(options, name)
            for name in ("rounds", "clients_per_round", "separation", "max_participations")
        },
        checkpoints=options.checkpoint,
        resume=options.resume,
    )


def plan(options: argparse.Namespace) -> None:
    from anechoic.lab.report.plan_table import print_plan
    from anechoic.mechanism.weak_delta import odd_epsilon, weak_delta
    from anechoic.participation import MinSep
    from anechoic.planning import plan
    from anechoic.sampling.base import plural
    from anechoic.workloads import momentum, prefix_sum

    if options.max_participations is not None and options.min_sep is None:
        raise ValueError(
            "--max-participations needs --min-sep, the steps between two participations of one unit."
        )
    if options.momentum and options.optimizer == "adam":
        raise ValueError(f"--momentum {options.momentum:g} is of SGD: leave it out with --optimizer adam.")
    promised = None if options.min_sep is None else MinSep(options.min_sep, options.max_participations)
    check_writable(options.json)
    weak = weak_delta(options.delta, options.examples, options.unit)
    for doubt in filter(None, (weak, odd_epsilon(options.epsilon))):
        print(f"anechoic plan: {doubt}.", file=sys.stderr)
    with patience(f"comparing mechanisms for {options.examples:,} {plural(options.unit)}"):
        found = plan(
            examples=options.examples,
            batch_size=options.batch_size,
            epochs=options.epochs,
            steps=options.steps,
            epsilon=options.epsilon,
            noise_multiplier=options.noise_multiplier,
            delta=options.delta,
            dimension=options.dimension,
            memory_budget=options.memory_budget,
            random_sampling=not options.no_random_sampling,
            participation=promised,
            workload=partial(momentum, momentum=options.momentum) if options.momentum else prefix_sum,
            strategy=options.mechanism,
            optimizer=options.optimizer,
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


def explain(options: argparse.Namespace) -> None:
    from anechoic.mechanism.endless import EndlessMechanism
    from anechoic.mechanism.mechanism import Mechanism

    check_writable(options.out)
    text = text_of(options.file)
    kind = EndlessMechanism if '"endless_format"' in text else Mechanism
    with naming(options.file), patience(f"computing the guarantee of {options.file} again"):
        shown = kind.from_json(text).report(options.format, out=options.out, proofs=options.proofs)
    saved = f"Saved: {options.out} (links to proofs lead to {options.proofs}; --proofs names another place)"
    print(shown.rstrip("\n") if options.out is None else saved)


def audit(options: argparse.Namespace) -> int:
    from anechoic.audit import audit_mechanism
    from anechoic.mechanism.mechanism import Mechanism

    text = text_of(options.file)
    if '"endless_format"' in text:
        raise ValueError(f"{options.file} is a mechanism without horizon: audit one of as many steps as run.")
    check_writable(options.json)
    with naming(options.file), patience(f"computing the guarantee of {options.file} again"):
        mechanism = Mechanism.from_json(text)
    given = {name: getattr(options, name) for name in ("canaries", "confidence", "delta", "factor", "seed")}
    if options.training:
        need("torch", "opacus")
        from anechoic.torch import audit_training

        report = audit_training(mechanism, **given)
    else:
        report = audit_mechanism(mechanism, **given)
    print(report)
    if options.json is not None:
        options.json.write_text(report.to_json(), encoding="utf-8")
        print(f"\nSaved: {options.json}")
    return int(report.violated)


def stream(options: argparse.Namespace) -> None:
    from anechoic.streaming.command import stream_file

    stream_file(options)


def theory(options: argparse.Namespace) -> None:
    need("matplotlib")
    from anechoic.lab.published import EXHIBITS, TRAINED, exhibit

    if options.list:
        for name, make in (EXHIBITS | TRAINED).items():
            print(f"{name:20} {(make.__doc__ or '').splitlines()[0]}")
        return
    for name in options.names or EXHIBITS:
        found = exhibit(name, data=options.data_dir, folder=options.out / f"{name}-runs")
        for file in found.write(options.out):
            print(file, flush=True)
