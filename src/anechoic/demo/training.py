"""One run of a study: the same loop for every arm; the engine makes the difference."""

from __future__ import annotations

import hashlib
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from anechoic.demo.study import Outcome, TrainingRun
from anechoic.demo.task import Data, load, loader
from anechoic.mechanism.mechanism import Mechanism
from anechoic.torch import PrivacyEngine

#: Steps between two reports of progress.
REPORT_EVERY = 32


def execute(run: TrainingRun, report: Callable[[int], None] = lambda steps: None) -> Outcome:
    """Train and score.

    Args:
        run: what to train.
        report: called with the number of steps made since it was last called.
    """
    data = load(run.task)
    start = time.perf_counter()
    model, optimizer, batches, engine = prepare(run, data)
    criterion = nn.CrossEntropyLoss()
    logits: list[Tensor] = []
    labels: list[Tensor] = []
    for done, (features, target) in enumerate(batches, 1):
        optimizer.zero_grad(set_to_none=True)
        if run.task.scores_batches:  # before the model is trained on them
            with torch.no_grad():
                logits.append(model(features))
            labels.append(target)
        criterion(model(features), target).backward()
        optimizer.step()
        if done % REPORT_EVERY == 0 or done == run.steps:
            report((done - 1) % REPORT_EVERY + 1)
        if done == run.steps:
            break
    metric = run.task.score(model, data, logits, labels)
    spent = None if engine is None else float(engine.get_epsilon(engine.mechanism.delta))
    return Outcome(run.arm.name, run.learning_rate, run.seed, metric, time.perf_counter() - start, spent)


def prepare(run: TrainingRun, data: Data) -> tuple[nn.Module, Any, Any, Any]:
    """Model, optimizer, batches and engine (None without privacy) of a run whose units are examples."""
    model = run.task.build(run.seed)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=run.learning_rate)
    batches = loader(run.task, data, run.seed)
    if run.arm.mechanism is None:
        return (*without_noise(run, model, optimizer), batches, None)
    mechanism = Mechanism.from_json(run.arm.mechanism)
    # Reproducible figures need keys that the run fixes. A run that protects anyone passes no keys:
    # the engine then draws them from the operating system.
    engine = PrivacyEngine(noise_key=key("noise", run), sampling_key=key("sampling", run))
    private = engine.make_private(
        module=model,
        optimizer=optimizer,
        data_loader=batches,
        mechanism=mechanism,
        max_grad_norm=mechanism.clip_norm,
    )
    return (*private, engine)


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
