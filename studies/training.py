"""One run of a study of flights or aircraft."""

from __future__ import annotations

import hashlib
import time
import warnings
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from anechoic.mechanism.mechanism import Mechanism
from anechoic.sampling import External, Poisson
from anechoic.strategies import Identity
from anechoic.torch import PrivacyEngine
from anechoic.units.ownership import Units
from studies.bounding import owners_in, participation_of
from studies.comparison.study import Arm, Outcome, TrainingRun, load
from studies.comparison.task import Data
from studies.tasks import SampledFlights, loader, used


def execute(run: TrainingRun) -> Outcome:
    """Train and score."""
    with warnings.catch_warnings():
        # torch says so of every model whose first layer is hooked: inputs need no gradient here
        warnings.filterwarnings("ignore", message="Full backward hook is firing")
        return _execute(run)


def _execute(run: TrainingRun) -> Outcome:
    data = load(run.task)
    start = time.perf_counter()
    model, optimizer, batches, engine = prepare(run, data)
    logits: list[Tensor] = []
    labels: list[Tensor] = []
    done = 0
    private = engine if run.arm.private else None
    criterion = nn.CrossEntropyLoss()
    while done < run.steps:
        for features, target in batches:
            optimizer.zero_grad(set_to_none=True)
            if run.task.scores_batches:  # before the model is trained on them
                # all flights of the step's window, also those that a bound leaves out of the training
                window = slice(done * run.task.batch_size, (done + 1) * run.task.batch_size)
                with torch.no_grad():
                    logits.append(model(data.features[window]))
                labels.append(data.labels[window])
            if len(target):
                criterion(model(features), target).backward()
            optimizer.step()
            done += 1
            if done == run.steps:
                break
    metric = run.task.score(model, data, logits, labels)
    spent = None if private is None else float(private.get_epsilon(private.mechanism.delta))
    seconds = time.perf_counter() - start
    return Outcome(run.arm.name, run.learning_rate, run.seed, metric, seconds, spent)


def prepare(run: TrainingRun, data: Data) -> tuple[nn.Module, Any, Any, Any]:
    """Model, optimizer, batches and engine (None without privacy) of a run."""
    model = run.task.build(run.seed)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=run.learning_rate)
    batches = loader(run.task, data, run.seed, unit=run.arm.unit)
    mechanism = _read(run.arm.mechanism) if run.arm.mechanism is not None else None
    if mechanism is None and run.arm.unit != "example":
        mechanism = silent(run.task, data, run.arm, run.steps)
    if mechanism is not None:
        # Reproducible figures need keys that the run fixes. A run that protects anyone passes no keys:
        # the engine then draws them from the operating system.
        engine = PrivacyEngine(noise_key=key("noise", run), sampling_key=key("sampling", run))
        private = engine.make_private(
            module=model,
            optimizer=optimizer,
            data_loader=batches,
            mechanism=mechanism,
            max_grad_norm=mechanism.clip_norm,
            poisson_sampling=mechanism.amplified,
            unit_ids=owned(run, data),
        )
        return (*private, engine)
    return (*without_noise(run, model, optimizer), batches, None)


def owned(run: TrainingRun, data: Data) -> Units | None:
    """Who owns what an arm trains on; None where examples are units."""
    if run.arm.unit == "example":
        return None
    if isinstance(run.task, SampledFlights):
        return Units(np.asarray(data.owners), combine="mean", max_examples=run.task.most_flights)
    return Units(np.asarray(data.owners)[used(run.task, data)[0]], combine="mean")


def silent(task: Any, data: Data, arm: Arm, steps: int) -> Mechanism:
    """The training of a private arm of another unit without its noise: a mechanism that adds next to none."""
    if isinstance(task, SampledFlights):
        count, size = len(np.unique(np.asarray(data.owners))), task.owners_a_batch
        return Mechanism(Identity(steps), Poisson(count, size, steps), 1e-12, task.clip_norm, unit=arm.unit)
    rows, batches = used(task, data)
    owners = np.asarray(data.owners)[rows]
    sampling = External(participation_of(batches, owners), max(1, round(owners_in(batches, owners))), steps)
    return Mechanism(Identity(steps), sampling, 1e-12, task.clip_norm, unit=arm.unit)


@lru_cache(maxsize=64)
def _read(text: str) -> Mechanism:
    # reading checks the file's epsilon, which takes a second where batches are sampled
    return Mechanism.from_json(text)


def without_noise(run: TrainingRun, model: nn.Module, optimizer: Any) -> tuple[nn.Module, Any]:
    """Model and optimizer of a run that clips, where its arm does, and adds nothing."""
    if run.arm.clip_norm is None:
        return model, optimizer
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    # torch says of Opacus's hooks, in the first backward pass, that inputs need no gradient
    warnings.filterwarnings("ignore", "Full backward hook is firing")

    return GradSampleModule(model), DPOptimizer(
        optimizer,
        noise_multiplier=0.0,
        max_grad_norm=run.arm.clip_norm,
        expected_batch_size=run.task.batch_size,
    )


def key(domain: str, run: TrainingRun) -> bytes:
    """32 bytes fixed by a run's name and task: for figures that can be reproduced, never for a guarantee."""
    return hashlib.sha256(
        f"anechoic experiment: {domain}; {run.task!r}; {run.steps}; {run.name}".encode()
    ).digest()
