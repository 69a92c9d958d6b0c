"""PrivacyEngine: Opacus's three lines, with a correlated noise mechanism behind them."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Unpack, overload

from torch import nn, optim

from anechoic._validate import one_of, positive_int
from anechoic.budget.book import BudgetBook
from anechoic.errors import GuaranteeError, UnsupportedError
from anechoic.mechanism.composition import Composition
from anechoic.mechanism.mechanism import Mechanism
from anechoic.runs.fork_guard import NonPicklable
from anechoic.statement.rounding import round_up
from anechoic.torch import checkpoint
from anechoic.torch.noise_adder import Ranks, RanksError, SumArithmetic
from anechoic.torch.run import Key, KeySource, PrivateRun
from anechoic.torch.setup import build_run, checks
from anechoic.torch.setup.arguments import (
    ByEpsilon,
    ByNoise,
    Four,
    Setup,
    Three,
    WithCriterion,
    WithoutCriterion,
    with_arguments,
)
from anechoic.units.ownership import Units

if TYPE_CHECKING:
    from anechoic.planning.result import Plan

logger = logging.getLogger("anechoic")

#: Words that Opacus has for its accountants.
ACCOUNTANTS = ("prv", "rdp", "gdp")


class EngineAccountant:
    """Opacus's `engine.accountant` after training; the figures are the engine's.

    It keeps no history: epsilon of correlated noise does not follow from a list of steps.
    """

    def __init__(self, engine: PrivacyEngine) -> None:
        self._engine = engine

    def get_epsilon(self, delta: float) -> float:
        """`engine.get_epsilon(delta)`; 0 before make_private."""
        return self._engine.get_epsilon(delta) if self._engine._run is not None else 0.0

    def __len__(self) -> int:
        """Releases made so far."""
        return self._engine.releases if self._engine._run is not None else 0


class PrivacyEngine(NonPicklable):
    """Makes a model, an optimizer and a data loader private, with the names and return values of Opacus.

    Guarantee: that of `mechanism.report()`. Code (script, model, loss, data set) is the data holder's, and
    trusted; data may be hostile. One batch of the returned loader is one release: it is fed whole to the
    returned module, loss.backward() is called once on a mean (or sum) over rows, and the returned optimizer
    is stepped once. Tensors of a batch carry a label, the axis of their rows, which operations pass on,
    forward and backward. step() asks whether the gradient at the model's outputs keeps rows apart, and
    releases nothing if not; after it nothing is followed. Weights may be loaded until the first batch is
    delivered; then only step() changes them. Engine, optimizer and loader belong to the process that made
    them. Noise and batches are AES-256 under keys of the operating system. Until step() the global generators
    are functions of the sampling key and t; then they go on where they were. From the first checkpoint on
    every release is in a journal, and a resumed run repeats it bit for bit or stops. With exact sums (see
    `arithmetic`) floating point is covered; else the statement bounds what rounding adds to a sum.
    Not covered: numbers taken out of a batch (.item(), NumPy) that reach the loss, lists that a model keeps
    from call to call, examples made of other records, padding that reaches gradients, logs of training,
    choices by private data, side channels, and code that means to get around the engine ('Sharp edges').

    Args:
        accountant: "prv", "rdp" or "gdp", as for Opacus. It changes nothing here.
        secure_mode: only False.
        noise_key, sampling_key: 32 secret bytes each, different ones, for this run alone, or functions that
            return them; None takes fresh ones from the operating system when make_private is called. Give
            them where figures must be reproduced, or where a checkpoint may not hold them.
        journal: where releases are written down: a file, or a folder. None: beside the newest checkpoint,
            from the first one on; then nothing is written in a run that saves none.
        journal_sync_every: releases between two waits for the disk. Above 1 a killed process still loses
            none; a power cut may take the last ones out of the journal.
        chunk_rows: rows of a chunk, at least one. Batches are then cut into chunks of so many rows, and a
            release by exact sums is the same, bit for bit, on every number of ranks of torch.distributed that
            share them, one process too. None: on several ranks 32, or what fits into memory; alone no chunks.
        book: a `BudgetBook`. make_private refuses a run that it does not cover, and the first batch books it;
            a run that goes on from a checkpoint is not booked again.

    Raises:
        ValueError: for an argument out of range.
        UnsupportedError: for secure_mode=True.

    Example:
        engine = PrivacyEngine()
        model, optimizer, loader = engine.make_private_with_epsilon(
            module=model, optimizer=optimizer, data_loader=loader,
            target_epsilon=8.0, target_delta=1e-6, epochs=10, max_grad_norm=1.0)
    """

    def __init__(
        self,
        *,
        accountant: str = "prv",
        secure_mode: bool = False,
        noise_key: Key = None,
        sampling_key: Key = None,
        journal: str | os.PathLike[str] | None = None,
        journal_sync_every: int = 1,
        chunk_rows: int | None = None,
        book: BudgetBook | None = None,
    ) -> None:
        one_of("accountant", accountant, ACCOUNTANTS)
        if accountant != "prv":
            logger.warning("accountant=%r changes nothing: epsilon follows from the mechanism.", accountant)
        if secure_mode:
            raise UnsupportedError(
                "secure_mode=True is not supported: noise comes from AES-256 in any case, and exact sums, the"
                " default where they are possible, cover floating point. Leave it False."
            )
        self._keys = KeySource(noise_key, sampling_key)
        self._journal = journal
        self._journal_sync_every = positive_int("journal_sync_every", journal_sync_every)
        self._chunk_rows = None if chunk_rows is None else positive_int("chunk_rows", chunk_rows)
        self._book = book
        self._run: PrivateRun | None = None
        self.plan: Plan | None = None  #: what the run was planned by, unless it has a given Mechanism

    # -- Opacus's names ------------------------------------------------------------------------

    @overload
    def make_private(
        self, *, grad_sample_mode: WithCriterion, wrap_model: bool = True, **options: Unpack[ByNoise]
    ) -> Four: ...

    @overload
    def make_private(
        self, *, grad_sample_mode: WithoutCriterion = "auto", **options: Unpack[ByNoise]
    ) -> Three: ...

    @with_arguments(ByNoise)
    def make_private(self, *positional: Any, **options: Any) -> tuple[Any, ...]:
        """Make private counterparts of module, optimizer and loader, with noise of a given multiplier.

        The loader's batch sampler is replaced by the one of the mechanism's sampling, which is logged: a
        SequentialSampler keeps its order, a RandomSampler becomes one permutation for the whole run, and
        Poisson sampling replaces either. Under External sampling the loader's own batches are used.

        Args:
            ARGUMENTS

        Returns:
            (module, optimizer, data_loader), or (module, optimizer, criterion, data_loader) for "ghost" and
            "vmap_loss".

        Raises:
            ValueError, TypeError: for arguments that are missing, unknown or out of range.
            UnsupportedError: for what has no implementation or no theorem.
            MismatchError: for a Mechanism that does not fit the other arguments.
            GuaranteeError: if this engine has made something private already.
        """
        return self._make(self.make_private, positional, options)

    @overload
    def make_private_with_epsilon(
        self, *, grad_sample_mode: WithCriterion, wrap_model: bool = True, **options: Unpack[ByEpsilon]
    ) -> Four: ...

    @overload
    def make_private_with_epsilon(
        self, *, grad_sample_mode: WithoutCriterion = "auto", **options: Unpack[ByEpsilon]
    ) -> Three: ...

    @with_arguments(ByEpsilon)
    def make_private_with_epsilon(self, *positional: Any, **options: Any) -> tuple[Any, ...]:
        """Make private counterparts with as much noise as (target_epsilon, target_delta) needs over the run.

        Args:
            ARGUMENTS

        Returns:
            As `make_private`.

        Raises:
            MismatchError: also if a given Mechanism's epsilon(target_delta) exceeds target_epsilon. The rest
                is as for `make_private`.
        """
        return self._make(self.make_private_with_epsilon, positional, options)

    def is_compatible(
        self, *, module: nn.Module, optimizer: optim.Optimizer | None = None, data_loader: Any = None
    ) -> bool:
        """Tell whether Opacus can compute the module's per-example gradients."""
        return bool(_opacus_validator().is_valid(module))

    def validate(
        self, *, module: nn.Module, optimizer: optim.Optimizer | None = None, data_loader: Any = None
    ) -> None:
        """Raise opacus.validators.errors.UnsupportedModuleError where `is_compatible` is False."""
        _opacus_validator().validate(module, strict=True)

    @classmethod
    def get_compatible_module(cls, module: nn.Module) -> nn.Module:
        """Copy `module` with the layers replaced that mix examples (BatchNorm by GroupNorm)."""
        fixed: nn.Module = _opacus_validator().fix(module)
        return fixed

    # -- beyond Opacus -------------------------------------------------------------------------

    def _make(
        self, method: Callable[..., Any], positional: tuple[Any, ...], options: dict[str, Any]
    ) -> tuple[Any, ...]:
        checks.check_arguments(method, positional, options)
        if self._run is not None:
            raise GuaranteeError(
                "this engine has made a model private already: make a new PrivacyEngine for another run, in"
                " the cell that makes the model. The guarantees of two runs on the same data add up."
            )
        ranks = Ranks()
        said: dict[str, Any] = {}
        with ranks.together("make_private", said) as words:
            if ranks.count > 1:
                options = options | {"module": build_run.unwrapped(options["module"])}
            setup = Setup.of(options)
            share = build_run.share_of(setup, self._chunk_rows, ranks)
            build_run.check(setup)
            mechanism, self.plan, arithmetic = build_run.mechanism_of(setup)
            way = build_run.noise_storage(setup, mechanism, self.plan)
            if ranks.rank == 0:
                if self._book is not None:
                    self._book.check(mechanism)
                said["keys"] = self._keys.draw()
            if ranks.count > 1:
                said["facts"] = build_run.facts_of(
                    setup, mechanism, self._keys.given, chunk_rows=share and share.rows
                )
        if ranks.count > 1:
            build_run.check_agreement([word["facts"] for word in words])
        said = {}
        with ranks.together("the beginning of the run", said) as others:
            run, private = build_run.build_run(
                *(setup, mechanism, arithmetic, words[0]["keys"]),
                way=way,
                share=share,
                ranks=ranks,
                journal=self._journal,
                sync_every=self._journal_sync_every,
            )
            said["batches"] = run.loader.feed.batches.name
        if any(other["batches"] != said["batches"] for other in others):  # as the script's own may be drawn
            raise RanksError(
                "the batches of the loader's batch_sampler differ from rank to rank: give it one seed."
            )
        run.book = self._book
        self._run = run
        return private

    # -- the run ---------------------------------------------------------------------------------

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
        return run.history.epsilon(delta, max(run.ledger.releases, run.recorder.recorded(run.keys.noise)))

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


def _opacus_validator() -> Any:
    """Opacus's checks and converters of modules: nothing else here needs Opacus."""
    try:
        from opacus.validators import ModuleValidator
    except ModuleNotFoundError as error:
        raise ImportError(
            "is_compatible, validate and get_compatible_module are Opacus's own, which is not installed: pip"
            " install 'anechoic[opacus]'. make_private needs none of them."
        ) from error
    return ModuleValidator
