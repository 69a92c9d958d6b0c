"""One run of a study: the same loop for every arm; the engine makes the difference."""

from __future__ import annotations

import hashlib
import time
import warnings
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from anechoic.experiments import keeping
from anechoic.experiments.study import Outcome, Run
from anechoic.experiments.tasks import Data, load, loader
from anechoic.mechanism import Mechanism

#: Steps between two reports of progress.
REPORT_EVERY = 32


def execute(run: Run, report: Callable[[int], None] = lambda steps: None) -> Outcome:
    """Train and score, or go on with what was begun, where the run says so.

    Args:
        run: what to train.
        report: called with the number of steps made since it was last called.
    """
    with warnings.catch_warnings():
        # torch says so of every model whose first layer is hooked: inputs need no gradient here
        warnings.filterwarnings("ignore", message="Full backward hook is firing")
        return _execute(run, report)


def _execute(run: Run, report: Callable[[int], None]) -> Outcome:
    if run.resume and (known := keeping.finished(run, identity(run))) is not None:
        report(run.steps)
        return known
    data = load(run.task)
    start = time.perf_counter()
    model, optimizer, batches, engine = prepare(run, data)
    logits: list[Tensor] = []
    labels: list[Tensor] = []
    done = 0
    if engine is not None and run.resume and keeping.begun(run):
        kept = engine.load_checkpoint(path=keeping.checkpoint(run), module=model, optimizer=optimizer)
        done, start = engine.releases, start - kept["seconds"]
        logits, labels = list(kept["logits"]), list(kept["labels"])
        report(done)
    criterion = nn.CrossEntropyLoss()
    said = done
    while done < run.steps:
        for features, target in batches:
            optimizer.zero_grad(set_to_none=True)
            out = model(features)
            if run.task.scores_batches:  # predicted before it is trained on
                logits.append(out.detach())
                labels.append(target)
            criterion(out, target).backward()
            optimizer.step()
            done += 1
            if done - said == REPORT_EVERY or done == run.steps:
                report(done - said)
                said = done
            if engine is not None and run.checkpoint and done % run.checkpoint_every == 0:
                kept = {"seconds": time.perf_counter() - start, "logits": logits, "labels": labels}
                engine.save_checkpoint(
                    path=keeping.checkpoint(run), module=model, optimizer=optimizer, checkpoint_dict=kept
                )
            if done == run.steps:
                break
    metric = run.task.score(model, data, logits, labels)
    spent = None if engine is None else float(engine.get_epsilon(engine.mechanism.delta))
    outcome = Outcome(run.arm.name, run.learning_rate, run.seed, metric, time.perf_counter() - start, spent)
    if run.checkpoint:
        keeping.keep(run, identity(run), outcome)
    return outcome


def prepare(run: Run, data: Data) -> tuple[nn.Module, Any, Any, Any]:
    """Model, optimizer, batches and engine (None without privacy) of a run."""
    model = run.task.build(run.seed)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=run.learning_rate)
    batches = loader(run.task, data, run.seed)
    if run.arm.mechanism is not None:
        from anechoic.torch import PrivacyEngine

        # Reproducible figures need keys that the run fixes. A run that protects anyone passes no keys:
        # the engine then draws them from the operating system.
        engine = PrivacyEngine(noise_key=key("noise", run), sampling_key=key("sampling", run))
        mechanism = _read(run.arm.mechanism)
        private = engine.make_private(
            module=model,
            optimizer=optimizer,
            data_loader=batches,
            mechanism=mechanism,
            max_grad_norm=mechanism.clip_norm,
            poisson_sampling=run.arm.scheme == "poisson",
        )
        return (*private, engine)
    if run.arm.clip_norm is not None:
        from opacus import GradSampleModule
        from opacus.optimizers import DPOptimizer

        clipped = DPOptimizer(
            optimizer,
            noise_multiplier=0.0,
            max_grad_norm=run.arm.clip_norm,
            expected_batch_size=run.task.batch_size,
        )
        return GradSampleModule(model), clipped, batches, None
    return model, optimizer, batches, None


def key(domain: str, run: Run) -> bytes:
    """32 bytes fixed by a run's name and task: for figures that can be reproduced, never for a guarantee."""
    return hashlib.sha256(
        f"anechoic experiment: {domain}; {run.task!r}; {run.steps}; {run.name}".encode()
    ).digest()


def identity(run: Run) -> str:
    """What an outcome belongs to: task, arm with its mechanism, learning rate, seed and steps."""
    return hashlib.sha256(key("outcome", run) + (run.arm.mechanism or "").encode()).hexdigest()


@lru_cache(maxsize=64)
def _read(text: str) -> Mechanism:
    # reading checks the file's epsilon, which takes a second where batches are sampled
    return Mechanism.from_json(text)
