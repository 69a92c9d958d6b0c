"""Audit of the whole training path: loader, clipping, noise and optimizer of `anechoic.torch`."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader

from anechoic._validate import Array, positive_int
from anechoic.audit.mechanism import audit, draw_contribution
from anechoic.audit.observation import Observation
from anechoic.audit.patterns import strongest_pattern
from anechoic.audit.report import AuditReport
from anechoic.mechanism.mechanism import Mechanism
from anechoic.torch.engine import PrivacyEngine
from anechoic.torch.setup.checks import check_one_process
from anechoic.torch.setup.mechanism_fit import loader_options

#: Most examples whose patterns are compared to choose the canaries among them.
_COMPARED = 8192


class ReleaseRecorder:
    """Record the releases of an optimizer of `anechoic.torch`, as sums in clip norms; made before training.

    Args:
        optimizer: the one that make_private returned.
        mechanism: of the run.
        parameters: those to keep, a canary layer's for example; None for all trainable ones.
        directions: orthonormal rows, shape (k, m), to keep only the products of those m numbers with them.
    """

    def __init__(
        self,
        optimizer: Any,
        mechanism: Mechanism,
        *,
        parameters: Iterable[torch.nn.Parameter] | None = None,
        directions: Any = None,
    ) -> None:
        divisor = 1.0 if optimizer.loss_reduction == "sum" else float(mechanism.expected_batch_size)
        self._factor = divisor / mechanism.clip_norm
        self._parameters = list(optimizer.params if parameters is None else parameters)
        self._directions = None if directions is None else np.asarray(directions, dtype=np.float64)
        self._rows: list[Array] = []
        self._before = optimizer.step_hook
        optimizer.attach_step_hook(self._keep)

    def _keep(self, optimizer: Any) -> None:
        if self._before is not None:
            self._before(optimizer)
        parts = [p.grad.detach().reshape(-1).double().cpu().numpy() for p in self._parameters]
        row = np.concatenate(parts) * self._factor
        self._rows.append(row if self._directions is None else self._directions @ row)

    @property
    def rows(self) -> Array:
        """Return the releases so far, shape (releases, m) or (releases, k)."""
        return np.array(self._rows)


def audit_training(
    mechanism: Mechanism,
    *,
    canaries: int = 1000,
    confidence: float = 0.95,
    delta: float | None = None,
    factor: float = 1.2,
    resume_at: int | Sequence[int] = (),
    examples_per_unit: int = 1,
    noise_key: bytes | None = None,
    sampling_key: bytes | None = None,
    seed: int | None = None,
) -> AuditReport:
    """Train with `PrivacyEngine` on canaries and audit what the optimizer releases. Needs the torch extra.

    The model is one linear layer and the loss its output, so that the gradient of an example is the example:
    a random orthogonal direction, beyond the clip norm, for a canary that is put in, and zero for one that
    is left out. Canaries are the examples with the strongest patterns of participation. Everything else is
    the path that real training takes.

    Args:
        mechanism: what is claimed. Under External sampling all canaries take part by the strongest allowed
            pattern found.
        canaries: m, the number of model parameters as well; at most the number of examples.
        confidence, delta, factor: see `audit`.
        resume_at: releases after which the run is saved and resumed, each in 1 … n-1.
        examples_per_unit: examples that each unit owns, all with the gradient of its canary. More than one
            needs a mechanism whose unit is not "example"; what is audited is then the unit's contribution.
        noise_key, sampling_key: 32 bytes each; None for fresh ones.
        seed: of directions and of who is put in; None for fresh entropy.

    Returns:
        Lower confidence bounds on mu and epsilon, and the power with which they would have refuted.

    Raises:
        ValueError, UnsupportedError: see `audit`.
    """
    m = positive_int("canaries", canaries, minimum=16, remedy="Half of them are left out.")
    m = min(m, mechanism.sampling.examples or m)
    stops = sorted({positive_int("resume_at", t) for t in np.atleast_1d(np.asarray(resume_at, object))})
    if stops and stops[-1] >= mechanism.steps:
        raise ValueError(f"resume_at={resume_at} must lie between 1 and n-1={mechanism.steps - 1}.")
    owned = positive_int("examples_per_unit", examples_per_unit)
    keys: dict[str, Any] = {"noise_key": noise_key, "sampling_key": sampling_key}
    run = _CanaryRun(mechanism, m, np.random.default_rng(seed), owned, keys)
    with tempfile.TemporaryDirectory() as folder:
        for stop in stops:
            run.train(stop)
            run.resume(Path(folder) / "audit.ckpt")
        run.train(mechanism.steps)
    units = "" if owned == 1 else f", {owned} examples each {mechanism.unit}"
    how = f", resumed after {', '.join(map(str, stops))} releases" if stops else ""
    return audit(
        mechanism,
        run.observation(),
        confidence=confidence,
        delta=delta,
        factor=factor,
        subject=f"training with {mechanism!r} through PrivacyEngine{units}{how}",
    )


class _Canaries:
    """Data set of canaries: an example of unit i is i's direction if it is put in, else zero."""

    def __init__(self, units: int, owned: int, dimension: int) -> None:
        self.owners, self.rows = np.arange(units * owned) % units, dict[int, Array]()
        self._zero = np.zeros(dimension)

    def __len__(self) -> int:
        return len(self.owners)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        unit = int(self.owners[index])
        return torch.from_numpy(self.rows.get(unit, self._zero).astype(np.float32)), unit


class _CanaryRun:
    """One training run on canaries, in as many engines as it is resumed."""

    def __init__(
        self, mechanism: Mechanism, canaries: int, rng: np.random.Generator, owned: int, keys: dict[str, Any]
    ) -> None:
        self._mechanism, self._keys, self._canaries = mechanism, keys, canaries
        self._units = int(mechanism.sampling.examples or canaries)
        self._owned = owned > 1 or mechanism.unit != "example"  # else an example is a unit
        self._data = _Canaries(self._units, owned, canaries)
        self._directions = np.linalg.qr(rng.standard_normal((canaries, canaries)))[0]
        self._rows: list[Array] = []
        self._delivered: list[NDArray[np.int64]] = []
        self._start()
        self._chosen = self._choose(canaries, rng)
        self._contribution = draw_contribution(mechanism, canaries, rng)
        for j, unit in enumerate(self._chosen.tolist()):
            if self._contribution[j]:
                length = 2.0 * mechanism.clip_norm  # clipping has something to do
                self._data.rows[unit] = length * self._contribution[j] * self._directions[j]

    def _start(self) -> None:
        model = torch.nn.Linear(self._canaries, 1, bias=False)
        torch.nn.init.zeros_(model.weight)
        check_one_process("audit_training")
        sampling = self._mechanism.sampling
        if sampling.formed_outside:
            pattern = strongest_pattern(self._mechanism.strategy, sampling.participation)
            inside = np.flatnonzero(self._data.owners < self._canaries).tolist()
            batching: dict[str, Any] = {"batch_sampler": [inside if t else [] for t in pattern]}
        else:
            batching = loader_options(sampling)
        self._engine = PrivacyEngine(**self._keys)
        self._model, self._optimizer, self._loader = self._engine.make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.0),
            data_loader=DataLoader(self._data, **batching),  # type: ignore[arg-type]
            mechanism=self._mechanism,
            unit_ids=self._data.owners if self._owned else None,
        )
        self._recorder = ReleaseRecorder(self._optimizer, self._mechanism, directions=self._directions)

    def _choose(self, canaries: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return the units with the strongest patterns, among as many as are compared."""
        if self._mechanism.sampling.formed_outside:  # those that are put into batches
            return np.arange(canaries)
        if self._mechanism.amplified:  # choosing by what was sampled would give away what is secret
            return rng.permutation(self._units)[:canaries]
        compared = rng.permutation(self._units)[: max(canaries, _COMPARED)]
        batches = map(self._loader.feed.batches.units_of, range(self._mechanism.steps))
        patterns = np.array([np.isin(compared, batch) for batch in batches], dtype=np.float64)
        norms = np.square(self._mechanism.strategy.multiply(patterns)).sum(axis=0)
        return np.asarray(compared[np.argsort(-norms, kind="stable")[:canaries]])

    def train(self, releases: int) -> None:
        """Train until so many releases are made."""
        while self._engine.releases < releases:
            for x, units in self._loader:
                self._optimizer.zero_grad()
                if len(x):
                    self._model(x).mean().backward()
                self._optimizer.step()
                self._delivered.append(np.asarray(units, dtype=np.int64))
                if self._engine.releases == releases:
                    break

    def resume(self, path: Path) -> None:
        """Save the run and resume it in another engine, as a new process would."""
        self._engine.save_checkpoint(path=path, module=self._model, optimizer=self._optimizer)
        self._rows.extend(self._recorder.rows)
        self._keys = {}
        self._start()
        self._engine.load_checkpoint(path=path, module=self._model, optimizer=self._optimizer)

    def observation(self) -> Observation:
        """Return the releases, and who was delivered."""
        rows = np.array([*self._rows, *self._recorder.rows])
        participation = np.array([np.isin(self._chosen, delivered) for delivered in self._delivered])
        sampling, group = self._mechanism.sampling, self._loader.feed.batches.public_cells()
        possible = None  # steps that sample the group of each chosen unit, where groups are public
        if group is not None:
            due = np.arange(sampling.steps)[:, None] % sampling.public_groups
            possible = np.asarray(due == group[self._chosen])
        return Observation(rows, participation, self._contribution, possible)
