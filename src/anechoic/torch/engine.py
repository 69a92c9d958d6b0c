"""PrivacyEngine: Opacus's three lines, with a correlated noise mechanism behind them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NoReturn

from opacus.validators import ModuleValidator
from torch import nn, optim
from torch.utils.data import DataLoader

from anechoic._validate import fraction, positive_float
from anechoic.batches import UnitBatches
from anechoic.errors import GuaranteeError, UnsupportedError
from anechoic.mechanism import Adjacency, Mechanism
from anechoic.noise import new_key
from anechoic.noise.keys import checked_key
from anechoic.participation import Participation
from anechoic.planning import Plan
from anechoic.torch import checkpoint, checks
from anechoic.torch.pseudo_gradient import NO_UNITS, LocalSteps, PseudoGradients
from anechoic.torch.run import Run
from anechoic.torch.setup import Setup, begin, check, mechanism_of
from anechoic.torch.single import Single
from anechoic.units import Units


class PrivacyEngine(Single):
    """Makes a model, an optimizer and a data loader private, with the names and return values of Opacus.

    Guarantee: that of `mechanism.report()`, for a training loop in which every batch of the returned
    loader is fed to the returned module, one row an example, its loss is a mean (or sum) of losses of
    single examples, and the returned optimizer is stepped once for it; with `unit_ids` the rows also keep
    their order, by which it is known whose they are. What can be checked of this is checked at every
    step. A trainable layer must be fed with the examples as rows: positions or selected rows are refused
    by their number, which shows nothing where there are as many positions as examples in the batch.
    Weights may be loaded after make_private until the first batch is delivered; from then on only step()
    may change them. Engine, optimizer and loader belong to the process that made them, and cannot be
    copied. Where batches are sampled and the model draws random numbers (dropout), torch's generator must be
    as secret as the keys: whether a unit is drawn shifts the masks of the others. Not covered: a loss that
    mixes examples (mixup, contrastive losses, class weights under reduction "mean"), floating-point
    attacks, side channels, and choices made by looking at private data (learning rates, early stopping).

    Args:
        accountant: only the default; the accountant follows from the mechanism.
        secure_mode: only False.
        noise_key, sampling_key: 32 secret bytes each, different ones, for this run alone; None takes fresh
            ones from the operating system. Give them only where figures must be reproduced.

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
        noise_key: bytes | None = None,
        sampling_key: bytes | None = None,
    ) -> None:
        if accountant != "prv":
            raise UnsupportedError(
                f"accountant={accountant!r}: the accountant follows from the mechanism (exact Gaussian"
                " without amplification, privacy loss distributions with it). Leave it out."
            )
        if secure_mode:
            raise UnsupportedError(
                "secure_mode=True is not supported: noise comes from 256 bits of the operating system, but"
                " additions are not hardened against floating-point attacks. Leave it False, and see 'not"
                " covered' in the report."
            )
        self._noise_key = new_key() if noise_key is None else checked_key(noise_key, "noise_key")
        self._sampling_key = new_key() if sampling_key is None else checked_key(sampling_key, "sampling_key")
        if self._noise_key == self._sampling_key:
            raise ValueError("noise_key and sampling_key are equal: pass two different keys, or none.")
        self._run: Run | None = None
        self.plan: Plan | None = None

    # -- Opacus's names ------------------------------------------------------------------------

    def make_private(
        self,
        *,
        module: nn.Module,
        optimizer: optim.Optimizer,
        criterion: Any = nn.CrossEntropyLoss(),  # noqa: B008 - Opacus's default
        data_loader: DataLoader[Any],
        noise_multiplier: float | None = None,
        max_grad_norm: float | None = None,
        batch_first: bool = True,
        loss_reduction: str = "mean",
        poisson_sampling: bool = True,
        clipping: str = "flat",
        noise_generator: None = None,
        grad_sample_mode: str = "hooks",
        wrap_model: bool = True,
        rand_on_empty: bool = False,
        mechanism: Mechanism | str = "auto",
        epochs: int | None = None,
        steps: int | None = None,
        target_delta: float | None = None,
        adjacency: Adjacency | None = None,
        unit: str | None = None,
        participation: Participation | None = None,
        memory_budget: int | None = None,
        unit_ids: Any = None,
        **unknown: Any,
    ) -> tuple[Any, ...]:
        """Private counterparts of module, optimizer and loader.

        The loader's batch sampler is replaced by the one of the mechanism's sampling, which is logged: a
        SequentialSampler keeps its order, a RandomSampler becomes one permutation for the whole run, and
        Poisson sampling replaces either. Under External sampling the loader's own batches are used.

        Args:
            module: plain module on its final device, in train() mode.
            optimizer: over the trainable parameters of `module`.
            criterion: loss, used where grad_sample_mode is "ghost" or "vmap_loss".
            data_loader: over a map-style data set, with a batch_size.
            noise_multiplier: sigma, in units of the reference sensitivity (see docs/notation.md).
            max_grad_norm: clip norm, > 0.
            batch_first: whether the batch is the first dimension of tensors.
            loss_reduction: "mean" or "sum", as the criterion's.
            poisson_sampling: whether batches may be sampled at random; False keeps one order of the data.
            grad_sample_mode: "hooks", "functorch", "ghost", "vmap", or "vmap_loss".
            wrap_model: False attaches hooks to `module` and returns them in its place.
            mechanism: a Mechanism; or "auto", or the name of a strategy ("identity", "banded_toeplitz",
                "blt", …), for one planned from the other arguments.
            epochs: passes of the loader; give this or `steps`, unless a Mechanism is given.
            steps: n.
            target_delta: delta of the printed guarantee; None for N^-1.1.
            adjacency, unit: see Mechanism.
            participation: what is promised of the loader's own batches, which are then used as they are.
            memory_budget: bytes that the noise state may take.
            unit_ids: who owns each example of the data set: one label an example, or a list of labels, or
                `Units`. Then units are what is sampled, clipped and counted: batch_size is the expected
                number of units in a step, and a batch holds all their examples.
            clipping, noise_generator, rand_on_empty: only Opacus's defaults.

        Returns:
            (module, optimizer, data_loader), or (module, optimizer, criterion, data_loader) for "ghost" and
            "vmap_loss".

        Raises:
            ValueError, TypeError: for arguments that are missing, unknown or out of range.
            UnsupportedError: for what has no implementation or no theorem.
            MismatchError: for a Mechanism that does not fit the other arguments.
            GuaranteeError: if this engine has made something private already.
        """
        checks.refuse_unknown(unknown, self.make_private)
        return self._make(
            Setup(
                module=module,
                optimizer=optimizer,
                criterion=criterion,
                data_loader=data_loader,
                epsilon=None,
                noise_multiplier=noise_multiplier,
                delta=target_delta,
                max_grad_norm=max_grad_norm,
                batch_first=batch_first,
                loss_reduction=loss_reduction,
                poisson_sampling=poisson_sampling,
                clipping=clipping,
                noise_generator=noise_generator,
                grad_sample_mode=grad_sample_mode,
                wrap_model=wrap_model,
                rand_on_empty=rand_on_empty,
                mechanism=mechanism,
                epochs=epochs,
                steps=steps,
                adjacency=adjacency,
                unit=unit,
                participation=participation,
                memory_budget=memory_budget,
                unit_ids=unit_ids,
            )
        )

    def make_private_with_epsilon(
        self,
        *,
        module: nn.Module,
        optimizer: optim.Optimizer,
        criterion: Any = nn.CrossEntropyLoss(),  # noqa: B008 - Opacus's default
        data_loader: DataLoader[Any],
        target_epsilon: float,
        target_delta: float,
        epochs: int | None = None,
        max_grad_norm: float | None = None,
        batch_first: bool = True,
        loss_reduction: str = "mean",
        poisson_sampling: bool = True,
        clipping: str = "flat",
        noise_generator: None = None,
        grad_sample_mode: str = "hooks",
        wrap_model: bool = True,
        rand_on_empty: bool = False,
        mechanism: Mechanism | str = "auto",
        steps: int | None = None,
        adjacency: Adjacency | None = None,
        unit: str | None = None,
        participation: Participation | None = None,
        memory_budget: int | None = None,
        unit_ids: Any = None,
        **unknown: Any,
    ) -> tuple[Any, ...]:
        """Like `make_private`, with as much noise as (target_epsilon, target_delta) needs over the whole run.

        Args:
            target_epsilon: > 0.
            target_delta: in (0, 1).
            mechanism: "auto" or a name plans one for the target; a Mechanism must keep within it.

        Raises:
            MismatchError: also if a given Mechanism's epsilon(target_delta) exceeds target_epsilon.
        """
        checks.refuse_unknown(unknown, self.make_private_with_epsilon)
        remedy = "Only infinitely much noise gives epsilon = 0."
        return self._make(
            Setup(
                module=module,
                optimizer=optimizer,
                criterion=criterion,
                data_loader=data_loader,
                epsilon=positive_float("target_epsilon", target_epsilon, remedy=remedy),
                noise_multiplier=None,
                delta=fraction("target_delta", target_delta),
                max_grad_norm=max_grad_norm,
                batch_first=batch_first,
                loss_reduction=loss_reduction,
                poisson_sampling=poisson_sampling,
                clipping=clipping,
                noise_generator=noise_generator,
                grad_sample_mode=grad_sample_mode,
                wrap_model=wrap_model,
                rand_on_empty=rand_on_empty,
                mechanism=mechanism,
                epochs=epochs,
                steps=steps,
                adjacency=adjacency,
                unit=unit,
                participation=participation,
                memory_budget=memory_budget,
                unit_ids=unit_ids,
            )
        )

    def get_epsilon(self, delta: float) -> float:
        """Epsilon at `delta` of the releases made so far: 0 before the first, never above the mechanism's."""
        return self.mechanism.epsilon(delta, steps=self.releases)

    def is_compatible(
        self, *, module: nn.Module, optimizer: optim.Optimizer | None = None, data_loader: Any = None
    ) -> bool:
        """Whether Opacus can compute the module's per-example gradients."""
        return bool(ModuleValidator.is_valid(module))

    def validate(
        self, *, module: nn.Module, optimizer: optim.Optimizer | None = None, data_loader: Any = None
    ) -> None:
        """Raise opacus.validators.errors.UnsupportedModuleError where `is_compatible` is False."""
        ModuleValidator.validate(module, strict=True)

    @classmethod
    def get_compatible_module(cls, module: nn.Module) -> nn.Module:
        """A copy of `module` with the layers replaced that mix examples (BatchNorm by GroupNorm)."""
        fixed: nn.Module = ModuleValidator.fix(module)
        ModuleValidator.validate(fixed, strict=True)
        return fixed

    def save_checkpoint(
        self,
        *,
        path: str | os.PathLike[str],
        module: Any = None,
        optimizer: Any = None,
        noise_scheduler: None = None,
        grad_clip_scheduler: None = None,
        checkpoint_dict: Mapping[str, Any] | None = None,
        module_state_dict_kwargs: None = None,
        torch_save_kwargs: None = None,
    ) -> None:
        """Write everything that the run needs to go on bit for bit. The file is secret: it holds the keys.

        Written to a temporary file and moved into place, so that an older checkpoint stays whole until the
        new one is. Call it between two steps.

        Args:
            path: file name.
            module, optimizer: those that `make_private` returned, or None.
            checkpoint_dict: whatever else should be kept (epoch, `scheduler.state_dict()`, …): tensors,
                numbers, strings, lists, tuples and dicts.
            noise_scheduler, grad_clip_scheduler, module_state_dict_kwargs, torch_save_kwargs: only None.

        Raises:
            CheckpointError: if the folder of `path` is missing.
            DesynchronizedError: if a batch is delivered and not stepped, or half summed.
            ValueError: if something in checkpoint_dict could not be read back safely.
        """
        checkpoint.only_none(
            noise_scheduler=noise_scheduler,
            grad_clip_scheduler=grad_clip_scheduler,
            module_state_dict_kwargs=module_state_dict_kwargs,
            torch_save_kwargs=torch_save_kwargs,
        )
        run = self._current()
        checkpoint.check_same(run, module, optimizer)
        checkpoint.save(run, path, dict(checkpoint_dict or {}))

    def load_checkpoint(
        self,
        *,
        path: str | os.PathLike[str],
        module: Any = None,
        optimizer: Any = None,
        noise_scheduler: None = None,
        grad_clip_scheduler: None = None,
        module_load_dict_kwargs: None = None,
        torch_load_kwargs: None = None,
    ) -> dict[str, Any]:
        """Go on from a checkpoint, after `make_private` with the same mechanism.

        Where a checkpoint is refused, the run stays as it was. The releases that the first process made
        after the checkpoint are made again with the same noise, so they must be the same: code and data must
        not have changed, and random augmentations must be drawn from random, numpy.random or torch.

        Returns:
            The `checkpoint_dict` that was saved.

        Raises:
            CheckpointError: if the file is missing, corrupt or truncated.
            MismatchError: if it belongs to another mechanism, model or order of the data.
            ReplayError: if releases could not be repeated bit for bit (other versions, threads or device),
                or this process has made them already.
        """
        checkpoint.only_none(
            noise_scheduler=noise_scheduler,
            grad_clip_scheduler=grad_clip_scheduler,
            module_load_dict_kwargs=module_load_dict_kwargs,
            torch_load_kwargs=torch_load_kwargs,
        )
        run = self._current()
        checkpoint.check_same(run, module, optimizer)
        return checkpoint.load(run, path)

    # -- beyond Opacus -------------------------------------------------------------------------

    @property
    def mechanism(self) -> Mechanism:
        """The mechanism of the run; `print(engine.mechanism)` states its guarantee."""
        return self._current().mechanism

    @property
    def accountant(self) -> NoReturn:
        """Refused: nothing is accumulated, the mechanism knows its epsilon.

        Raises:
            UnsupportedError: always.
        """
        raise UnsupportedError(
            "engine.accountant does not exist here: epsilon follows from the mechanism. Call"
            " engine.get_epsilon(delta), or print(engine.mechanism)."
        )

    @property
    def units(self) -> Units | None:
        """Who owns which example; None where every example is a unit of its own."""
        batches = self._current().loader.feed.batches
        return batches.units if isinstance(batches, UnitBatches) else None

    @property
    def unreachable_examples(self) -> int:
        """Examples that no batch of this run can hold, as their owners never take part together.

        Where batches are secret it depends on the draw, so it is not for publication.
        """
        batches = self._current().loader.feed.batches
        return batches.unreachable if isinstance(batches, UnitBatches) else 0

    def pseudo_gradients(
        self,
        criterion: Any,
        *,
        local_steps: int,
        learning_rate: float,
        local_batch_size: int | None = None,
        vectorize: bool = True,
    ) -> PseudoGradients:
        """What takes the place of forward and backward pass: each unit's own local steps (Eq. 1.27).

        Call the result with each delivered batch, (input, …, target), and then `optimizer.step()`, which
        clips one pseudo-gradient a unit. How a unit's losses are combined is what its `Units` say.

        Args:
            criterion: a torch criterion, as in `pseudo_gradient`.
            local_steps, learning_rate, local_batch_size: see `pseudo_gradient`.
            vectorize: all units of similar size at once; False for models that torch.func.vmap cannot run.

        Raises:
            UnsupportedError: without unit_ids, under ghost clipping, or for a criterion without one loss an
                example.
        """
        run = self._current()
        how = LocalSteps(local_steps, learning_rate, local_batch_size)
        if self.units is None or not run.source.takes_units:
            raise UnsupportedError(NO_UNITS)
        return PseudoGradients(
            run.module, run.optimizer, criterion, how, combine=self.units.combine, vectorize=vectorize
        )

    @property
    def releases(self) -> int:
        """Releases (steps) made so far."""
        return self._current().ledger.releases

    def _current(self) -> Run:
        if self._run is None:
            raise ValueError(
                "this engine has no run yet: call make_private or make_private_with_epsilon first."
            )
        return self._run

    def _make(self, setup: Setup) -> tuple[Any, ...]:
        if self._run is not None:
            raise GuaranteeError(
                "this engine has made a model private already: make a new PrivacyEngine for another run. The"
                " guarantees of two runs on the same data add up."
            )
        mechanism, self.plan = mechanism_of(setup, check(setup))
        self._run, private = begin(setup, mechanism, self._noise_key, self._sampling_key)
        return private
