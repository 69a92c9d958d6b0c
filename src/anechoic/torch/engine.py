"""PrivacyEngine: Opacus's three lines, with a correlated noise mechanism behind them."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Unpack, overload

from torch import nn, optim

from anechoic._validate import one_of, positive_int
from anechoic.budget.book import BudgetBook
from anechoic.errors import GuaranteeError, UnsupportedError
from anechoic.runs.fork_guard import NonPicklable
from anechoic.torch.checkpoints.resumable import Resumable
from anechoic.torch.distributed import Ranks, RanksError
from anechoic.torch.run import Key, KeySource
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
from anechoic.torch.setup.build_run import (
    build_run,
    check,
    check_agreement,
    checks,
    facts_of,
    mechanism_of,
    noise_storage,
    share_of,
    unwrapped,
)
from anechoic.torch.sources.base import AUTO

if TYPE_CHECKING:
    from anechoic.planning.result import Plan

logger = logging.getLogger("anechoic")

#: Words that Opacus has for its accountants.
ACCOUNTANTS = ("prv", "rdp", "gdp")


class PrivacyEngine(Resumable, NonPicklable):
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

    @overload
    def make_private(
        self, *, grad_sample_mode: str = AUTO, wrap_model: bool = True, **options: Unpack[ByNoise]
    ) -> tuple[Any, ...]: ...

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

    @overload
    def make_private_with_epsilon(
        self, *, grad_sample_mode: str = AUTO, wrap_model: bool = True, **options: Unpack[ByEpsilon]
    ) -> tuple[Any, ...]: ...

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
                options = options | {"module": unwrapped(options["module"])}
            setup = Setup.of(options)
            share = share_of(setup, self._chunk_rows, ranks)
            check(setup)
            mechanism, self.plan, arithmetic = mechanism_of(setup)
            way = noise_storage(setup, mechanism, self.plan)
            if ranks.rank == 0:
                if self._book is not None:
                    self._book.check(mechanism)
                said["keys"] = self._keys.draw()
            if ranks.count > 1:
                said["facts"] = facts_of(setup, mechanism, self._keys.given, chunk_rows=share and share.rows)
        if ranks.count > 1:
            check_agreement([word["facts"] for word in words])
        said = {}
        with ranks.together("the beginning of the run", said) as others:
            run, private = build_run(
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
