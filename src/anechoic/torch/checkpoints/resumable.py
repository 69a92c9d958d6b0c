"""What an engine says of its run, what it charges to it, and its checkpoints."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from anechoic.mechanism.composition import Composition
from anechoic.mechanism.mechanism import Mechanism
from anechoic.statement.rounding import round_up
from anechoic.torch.checkpoints import checkpoint
from anechoic.torch.noise_adder import SumArithmetic
from anechoic.torch.run import PrivateRun
from anechoic.units.ownership import Units


class EngineAccountant:
    """Opacus's `engine.accountant` after training; the figures are the engine's.

    It keeps no history: epsilon of correlated noise does not follow from a list of steps.
    """

    def __init__(self, engine: Resumable) -> None:
        self._engine = engine

    def get_epsilon(self, delta: float) -> float:
        """`engine.get_epsilon(delta)`; 0 before make_private."""
        return self._engine.get_epsilon(delta) if self._engine._run is not None else 0.0

    def __len__(self) -> int:
        """Releases made so far."""
        return self._engine.releases if self._engine._run is not None else 0


class Resumable:
    """Save and load a run, and count releases that were made before it."""

    _run: PrivateRun | None = None

    @property
    def accountant(self) -> EngineAccountant:
        """Opacus's accountant: `get_epsilon(delta)`, and the number of steps."""
        return EngineAccountant(self)

    @property
    def mechanism(self) -> Mechanism:
        """The mechanism of the run; `print(engine.mechanism)` states its guarantee."""
        return self._current().mechanism

    @property
    def arithmetic(self) -> SumArithmetic:
        """Whether the sums of the run are integers, and if not, why."""
        return self._current().arithmetic

    @property
    def units(self) -> Units | None:
        """Who owns which example; None where every example is a unit of its own."""
        return self._current().loader.feed.batches.units

    @property
    def unreachable_examples(self) -> int:
        """Examples that no batch of this run can hold, as their owners never take part together.

        Where batches are secret it depends on the draw, so it is not for publication.
        """
        return self._current().loader.feed.batches.unreachable

    @property
    def releases(self) -> int:
        """Releases (steps) made so far."""
        return self._current().ledger.releases

    def __repr__(self) -> str:
        """Say what it is: mode, mechanism, releases, and their epsilon where that is a closed form."""
        run = self._run
        if run is None:
            return f"{type(self).__name__}(no run yet: call make_private)"
        mechanism, made = run.mechanism, f"{self.releases} of {run.mechanism.steps} releases made"
        if mechanism.accountant is None and not run.history.earlier:
            made += f", epsilon={round_up(self.get_epsilon(mechanism.delta))} at delta={mechanism.delta:g}"
        return f"{type(self).__name__}(grad_sample_mode={run.source.mode!r}, {mechanism!r}, {made})"

    def _current(self) -> PrivateRun:
        if self._run is None:
            raise ValueError("this engine has no run yet: call make_private first.")
        return self._run

    def get_epsilon(self, delta: float) -> float:
        """Compute epsilon at `delta` of the releases made so far, with what was charged: 0 before the first.

        Releases that the journal knows of count from the start, also where a resumed run has not repeated
        them yet. Without charges never above the mechanism's. It holds for a number of releases that was
        fixed without looking at them; a stop that was chosen by what was released has the epsilon of the
        whole mechanism.
        """
        run = self._current()
        return run.history.epsilon(delta, max(run.ledger.releases, run.recorder.made(run.keys.noise)))

    def charge(
        self, what: Mechanism | Mapping[str, Any], *mechanisms: Mechanism, releases: int | None = None
    ) -> None:
        """Count releases that were made before this run, on the same data: get_epsilon composes with them.

        For weights that come from another private run, such as a framework's own checkpoint, which holds no
        keys: `engine.charge(torch.load("optimizer.pt"))` before the framework restores it.

        Args:
            what: the state of a private optimizer, with the runs that it belongs to; or the Mechanism of
                another run.
            mechanisms: of those runs, where they are not this run's.
            releases: how many were made, on the caller's word. None: all of its mechanism's, because more may
                have been made after the state was saved.

        Raises:
            CheckpointError, MismatchError, ValueError: for the state of an optimizer that was not private, a
                mechanism that is unknown or protects another unit, and more releases than it has.
        """
        history = self._current().history
        if isinstance(what, Mechanism):
            history.charge(what, releases)
        else:
            history.charge_stamp(what, mechanisms, releases)

    @property
    def composition(self) -> Composition:
        """The mechanism of the run, composed with what was charged; printing it states the guarantee."""
        return self._current().history.composition(self.mechanism.steps)

    def save_checkpoint(
        self,
        *,
        path: str | os.PathLike[str],
        module: Any = None,
        optimizer: Any = None,
        checkpoint_dict: Mapping[str, Any] | None = None,
        keys: bool = True,
        **options: None,
    ) -> None:
        """Save all that the run needs to go on bit for bit. The file is secret: it holds the keys.

        An older checkpoint stays whole until the new one is. Call it between two steps. From the first one
        on, releases are written down in a journal in the same folder, which must be kept with the checkpoint
        and holds no secret.

        Args:
            path: file name. Of several ranks the first one writes it.
            module, optimizer: those that `make_private` returned, or None.
            checkpoint_dict: whatever else should be kept (epoch, `scheduler.state_dict()`, …): tensors,
                numbers, strings, lists, tuples and dicts.
            keys: False seals the checkpoint: it holds no secret, and is read by an engine that is given the
                same noise_key and sampling_key. The noise of all steps is then drawn again.
            options: what Opacus has beside these (noise_scheduler, torch_save_kwargs, …): only None.

        Raises:
            CheckpointError: if the folder of `path` is missing, or `path` is one.
            DesynchronizedError: if a batch is delivered and not stepped, or half summed.
            GuaranteeError: if something else than step() changed the model since the last one.
            ValueError: if something in checkpoint_dict could not be read back safely.
        """
        run = self._current()
        checkpoint.check_given(run, module, optimizer, **options)
        checkpoint.save(run, path, dict(checkpoint_dict or {}), keys=keys)

    def load_checkpoint(
        self,
        *,
        path: str | os.PathLike[str],
        module: Any = None,
        optimizer: Any = None,
        adopt_journal: bool = False,
        **options: None,
    ) -> dict[str, Any]:
        """Load a checkpoint, after `make_private` with the same mechanism.

        A mechanism that was planned again, and differs in the last digits alone, gives way to that of the
        checkpoint. Where a checkpoint is refused, the run stays as it was. The releases that were made after
        the checkpoint are made again with the same noise, so they must be the same: each is compared with the
        journal, and one that differs is refused before the model sees it.

        Args:
            path: of the checkpoint, with its journal beside it.
            module, optimizer: those that `make_private` returned, or None.
            adopt_journal: take a journal that was moved, copied or put back. It is the caller's word that no
                other copy of the run is continued, and that nothing was released after this copy was taken:
                otherwise rows of noise are used twice unseen.
            options: what Opacus has beside these (noise_scheduler, torch_load_kwargs, …): only None.

        Returns:
            The `checkpoint_dict` that was saved.

        Raises:
            CheckpointError: if the file or its journal is missing, corrupt or truncated.
            GuaranteeError: if another process has the journal open.
            MismatchError: if it belongs to another mechanism, model or order of the data.
            ReplayError: if another version of the library would draw other noise or batches; if the journal
                may lack releases (journal_sync_every) that another machine would round differently; if this
                process has made them already; if the journal is a copy.
        """
        run = self._current()
        checkpoint.check_given(run, module, optimizer, **options)
        extra = checkpoint.load(run, path, adopt_journal=adopt_journal)
        run.book_run()
        return extra
