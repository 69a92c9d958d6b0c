"""PrivacyEngine: Opacus's three lines, with a correlated noise mechanism behind them."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any, Unpack, overload

from torch import nn, optim

from anechoic._validate import one_of, positive_int
from anechoic.budget.book import BudgetBook
from anechoic.errors import GuaranteeError, UnsupportedError
from anechoic.planning.result import Plan
from anechoic.runs.fork_guard import Uncopyable
from anechoic.torch.checkpoints.resumable import EngineAccountant, Resumable
from anechoic.torch.distributed import Ranks, RanksError
from anechoic.torch.keys import Key, KeySource
from anechoic.torch.setup.agreement import check_agreement, facts_of, unwrapped
from anechoic.torch.setup.asked import (
    ByEpsilon,
    ByNoise,
    Four,
    Setup,
    Three,
    WithCriterion,
    WithoutCriterion,
    spelled,
)
from anechoic.torch.setup.build_run import begin, check, checks, mechanism_of, share_of, way_of
from anechoic.torch.sources.base import AUTO

logger = logging.getLogger("anechoic")

#: Words that Opacus has for its accountants.
ACCOUNTANTS = ("prv", "rdp", "gdp")


class PrivacyEngine(Resumable, Uncopyable):
    """Makes a model, an optimizer and a data loader private, with the names and return values of Opacus.

    Guarantee: that of `mechanism.report()`, for a training loop in which every batch of the returned loader
    is fed to the returned module, one row an example, its loss is a mean (or sum) of losses of single
    examples, and the returned optimizer is stepped once for it; with `unit_ids` the rows also keep their
    order, by which it is known whose they are. The model runs row by row, so no row sees another, whatever
    the layers are. What the loop does with rows before the model, and with outputs and targets in the loss,
    is followed operation by operation, and refused where rows meet. Weights may be loaded after make_private
    until the first batch is delivered; from then on only step() may change them. Engine, optimizer and loader
    belong to the process that made them, and cannot be copied. Noise and batches are AES-256 under keys of
    the operating system; from the delivery of a batch to its step() the global generators (torch,
    numpy.random, random) are functions of the sampling key and t, so no seed of the script has to be secret;
    then they go on where they were. From the first checkpoint on every release is in a journal, and a resumed
    run repeats it bit for bit or stops. With exact sums (see `arithmetic`) a release is what the proof says
    in spite of floating point; without, the statement bounds what rounding adds to a sum.
    A loss that mixes examples is refused, as far as torch's operations show it. Not covered: decisions by the
    batch, numbers that reach the loss by float(), int() or NumPy (in "vmap_loss" mode a loss is given one row
    at a time), padding to the longest of a batch where gradients depend on it, which floats can be released
    without exact sums, side channels, copies of a run that go on apart, training losses in a log, and choices
    made by looking at private data (learning rates, a validation set).

    Args:
        accountant: "prv", "rdp" or "gdp", as for Opacus. It changes nothing here: epsilon follows from the
            mechanism.
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
            share them, one process included (docs/many-devices.md). None: on several ranks 32, or as many as
            fit into memory; in one process batches are not cut.
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
            logger.warning(
                "accountant=%r changes nothing: epsilon follows from the mechanism, exact without"
                " amplification, by privacy loss distributions with it.",
                accountant,
            )
        if secure_mode:
            raise UnsupportedError(
                "secure_mode=True is not supported: noise comes from AES-256 under a key of the operating"
                " system in any case, and exact sums, the default where they are possible, cover floating"
                " point. Leave it False."
            )
        self._keys = KeySource(noise_key, sampling_key)
        self._journal = journal
        self._journal_sync_every = positive_int("journal_sync_every", journal_sync_every)
        self._chunk_rows = None if chunk_rows is None else positive_int("chunk_rows", chunk_rows)
        self._book = book
        self.plan: Plan | None = None

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

    @spelled(ByNoise)
    def make_private(self, *positional: Any, **options: Any) -> tuple[Any, ...]:
        """Private counterparts of module, optimizer and loader.

        The loader's batch sampler is replaced by the one of the mechanism's sampling, which is logged: a
        SequentialSampler keeps its order, a RandomSampler becomes one permutation for the whole run, and
        Poisson sampling replaces either. Under External sampling the loader's own batches are used.

        Args:
            module: plain module on its final device, in train() mode.
            optimizer: over the trainable parameters of `module`.
            criterion: loss, used where grad_sample_mode is "ghost" or "vmap_loss".
            data_loader: over a map-style data set, with a batch_size. Each example keeps its index for the
                whole run: no `set_epoch` that permutes the data.
            noise_multiplier: sigma as Opacus means it: that of independent noise (in units of its reference
                sensitivity, see docs/notation.md). The run keeps the epsilon that this gives at target_delta,
                whatever mechanism is planned; mechanism="identity" takes this very noise.
            max_grad_norm: clip norm of a whole gradient, > 0; or one for each trainable parameter, or by
                patterns of their names: see `clipping`.
            batch_first: whether the batch is the first dimension of tensors.
            loss_reduction: "mean" or "sum", as the criterion's.
            poisson_sampling: whether batches may be sampled at random; False keeps one order of the data.
            grad_sample_mode: "rows" ("auto", and Opacus's "hooks" and "functorch"): each row by itself.
                "ghost": less memory, for models of listed layers. "vmap_loss": the loss too, row by row.
                "labels": as "rows", but tensors of the batch carry labels of their rows, and nothing else is
                followed: step() asks whether the gradient at the model's outputs keeps rows apart.
            wrap_model: False, under "ghost" alone, returns no wrapper around `module`.
            mechanism: a Mechanism, or a Plan, whose choice is taken; or "auto", or the name of a strategy
                ("identity", "banded_toeplitz", "blt", …), for one planned from the other arguments. "auto"
                looks at the optimizer: the least error of sums for SGD, with momentum too, and
                `CorrectedAdam`; the least noise of a step for others, whose learning rates then stay what
                they are (docs/choosing.md).
            epochs: passes of the loader; give this or `steps`, unless a Mechanism is given. With neither,
                noise_multiplier and Poisson sampling make a run of independent noise, which may stop after
                any step: correlated noise is planned for a known number of them.
            steps: n.
            target_delta: delta of the printed guarantee; None for 1 / (100 N).
            adjacency, unit: see Mechanism.
            participation: what is promised of the loader's own batches, which are then used as they are.
            scheduler: of the learning rates, as in `plan`; or the rates. Momentum and weight decay of the
                optimizer are planned for without it.
            scheduler_interval: whether it is stepped once a "step" or once an "epoch".
            keep: which iterates matter, as in `plan`: "last" (default), "all", "average" or a weight.
            workload: instead of what the optimizer adds up to, as in `plan`.
            memory_budget: bytes that the noise state may take, on a grid too, or "2GB"; None as in `plan`.
                Rows of noise that do not fit, of a given Mechanism too, are made again from the keys in each
                step where they are sums of few fresh ones (`BandedInverse`, `Output`).
            unit_ids: who owns each example of the data set: one label an example, or a list of labels, or
                `Units`. Then units are what is sampled, clipped and counted: batch_size is the expected
                number of units in a step, and a batch holds all their examples.
            exact_sums: whether contributions and noise are added up as integers, so that a release is what
                the proof says in spite of floating point (docs/proofs/float-safe.md). None: as a given
                Mechanism has it; a planned one has a grid where that is possible, and `arithmetic` says why
                where it has none (grad_sample_mode="ghost", parameters on a GPU or in float64, noise or a
                clip norm out of its range; with a warning, a memory_budget that nothing fits into on a grid).
                False: none. True: refused where it is impossible.
            clipping: "flat": over all parameters together. "per_layer": each parameter to its own norm: a
                list in the optimizer's order, or one number, of which each has an equal part. "per_group": by
                the first pattern that its name matches, {"embedding.*": 0.5, "*": 1.0}. "automatic": every
                gradient g becomes clip norm * g / (|g| + 0.01), a list or patterns for parts of it. The clip
                norm of the mechanism is the root of the sum of squares (docs/proofs/clipping.md).
            noise_generator, rand_on_empty: only Opacus's defaults.

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

    @spelled(ByEpsilon, "target_epsilon", "target_delta")
    def make_private_with_epsilon(self, *positional: Any, **options: Any) -> tuple[Any, ...]:
        """Like `make_private`, with as much noise as (target_epsilon, target_delta) needs over the whole run.

        Args:
            target_epsilon: > 0.
            target_delta: in (0, 1).
            mechanism: "auto" or a name plans one for the target; a Mechanism must keep within it.

        Raises:
            MismatchError: also if a given Mechanism's epsilon(target_delta) exceeds target_epsilon.
        """
        return self._make(self.make_private_with_epsilon, positional, options)

    # What Opacus says of a module before anything is made private.

    def is_compatible(
        self, *, module: nn.Module, optimizer: optim.Optimizer | None = None, data_loader: Any = None
    ) -> bool:
        """Whether Opacus can compute the module's per-example gradients."""
        return bool(_opacus_validator().is_valid(module))

    def validate(
        self, *, module: nn.Module, optimizer: optim.Optimizer | None = None, data_loader: Any = None
    ) -> None:
        """Raise opacus.validators.errors.UnsupportedModuleError where `is_compatible` is False."""
        _opacus_validator().validate(module, strict=True)

    @classmethod
    def get_compatible_module(cls, module: nn.Module) -> nn.Module:
        """A copy of `module` with the layers replaced that mix examples (BatchNorm by GroupNorm)."""
        validator = _opacus_validator()
        fixed: nn.Module = validator.fix(module)
        validator.validate(fixed, strict=True)
        return fixed

    # -- beyond Opacus -------------------------------------------------------------------------

    @property
    def accountant(self) -> EngineAccountant:
        """What Opacus's accountants are asked for: `get_epsilon(delta)`, and the number of steps."""
        return EngineAccountant(self)

    def _make(
        self, method: Callable[..., Any], positional: tuple[Any, ...], options: dict[str, Any]
    ) -> tuple[Any, ...]:
        checks.check_arguments(method, positional, options)
        if self._run is not None:
            raise GuaranteeError(
                "this engine has made a model private already: make a new PrivacyEngine for another run (in a"
                " notebook, in the cell that makes the model). The guarantees of two runs on the same data"
                " add up."
            )
        ranks = Ranks()
        said: dict[str, Any] = {}
        with ranks.together("make_private", said) as words:
            if ranks.count > 1:
                options = options | {"module": unwrapped(options["module"])}
            setup = Setup.of(options)
            share = share_of(setup, self._chunk_rows, ranks)
            parameters = check(setup)
            mechanism, self.plan, arithmetic = mechanism_of(setup, parameters)
            way = way_of(setup, mechanism, self.plan, parameters)
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
            run, private = begin(
                setup,
                mechanism,
                arithmetic,
                words[0]["keys"],
                way=way,
                journal=self._journal,
                sync_every=self._journal_sync_every,
                share=share,
                ranks=ranks,
            )
            said["batches"] = run.loader.feed.batches.name
        if any(other["batches"] != said["batches"] for other in others):  # as the script's own may be drawn
            raise RanksError(
                "the batches of the loader's batch_sampler differ from rank to rank: give it the same seed on"
                " every rank. Nothing was begun."
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
            " install 'anechoic[opacus]'. make_private needs none of them: it says by itself what it refuses."
        ) from error
    return ModuleValidator
