"""From the arguments of make_private to a run: what was asked for, its mechanism, and the private objects."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from opacus.grad_sample import prepare_module
from torch import nn, optim
from torch.utils.data import DataLoader

from anechoic.batches import Batches, batches_of
from anechoic.mechanism import Adjacency, Mechanism
from anechoic.participation import Participation
from anechoic.planning import STRATEGIES, UNAMPLIFIED, Plan, plan
from anechoic.sampling import External
from anechoic.torch import checks
from anechoic.torch.ghost import watched_module
from anechoic.torch.ghost_loss import ghost_criterion
from anechoic.torch.ledger import ReleaseLedger
from anechoic.torch.loader import Feed, PrivateDataLoader
from anechoic.torch.optimizer import CorrelatedOptimizer, GhostCorrelatedOptimizer
from anechoic.torch.run import Run, watched_tensors
from anechoic.torch.samplers import Given, check_promise

logger = logging.getLogger("anechoic")


@dataclass(frozen=True, kw_only=True)
class Setup:
    """The arguments of make_private and make_private_with_epsilon; see `PrivacyEngine`.

    `epsilon` and `noise_multiplier` are what a mechanism is planned for, or what a given one must keep.
    """

    module: nn.Module
    optimizer: optim.Optimizer
    criterion: Any
    data_loader: DataLoader[Any]
    epsilon: float | None
    noise_multiplier: float | None
    delta: float | None
    max_grad_norm: float | None
    batch_first: bool
    loss_reduction: str
    poisson_sampling: bool
    clipping: str
    noise_generator: Any
    grad_sample_mode: str
    wrap_model: bool
    rand_on_empty: bool
    mechanism: Mechanism | str
    epochs: int | None
    steps: int | None
    adjacency: Adjacency | None
    unit: str | None
    participation: Participation | None
    memory_budget: int | None

    @property
    def examples(self) -> int:
        """N."""
        return len(self.data_loader.dataset)  # type: ignore[arg-type]


def check(setup: Setup) -> list[nn.Parameter]:
    """Refuse what cannot be made private; returns the trainable parameters. Changes nothing."""
    checks.check_options(
        clipping=setup.clipping,
        noise_generator=setup.noise_generator,
        grad_sample_mode=setup.grad_sample_mode,
        loss_reduction=setup.loss_reduction,
        rand_on_empty=setup.rand_on_empty,
        max_grad_norm=setup.max_grad_norm,
    )
    if setup.grad_sample_mode == "ghost":
        checks.check_criterion(setup.criterion, setup.loss_reduction)
    checks.check_loader(setup.data_loader)
    checks.check_module(setup.module)
    return checks.check_optimizer(setup.optimizer, setup.module)


def mechanism_of(setup: Setup, parameters: list[nn.Parameter]) -> tuple[Mechanism, Plan | None]:
    """The given mechanism if it fits, or one planned for the setup."""
    if isinstance(setup.mechanism, Mechanism):
        if not isinstance(setup.mechanism.sampling, External):
            checks.is_shuffled(setup.data_loader)  # refuses batches that would have to be replaced
        checks.check_fit(
            setup.mechanism,
            setup.data_loader,
            poisson_sampling=setup.poisson_sampling,
            max_grad_norm=setup.max_grad_norm,
            noise_multiplier=setup.noise_multiplier,
            epochs=setup.epochs,
            steps=setup.steps,
            adjacency=setup.adjacency,
            unit=setup.unit,
            participation=setup.participation,
        )
        if setup.epsilon is not None and setup.delta is not None:
            checks.check_budget(setup.mechanism, setup.epsilon, setup.delta)
        return setup.mechanism, None
    if not isinstance(setup.mechanism, str):
        raise ValueError(
            f"mechanism={setup.mechanism!r} must be a Mechanism, 'auto', or the name of a strategy."
        )
    if setup.mechanism not in STRATEGIES:
        raise ValueError(
            f"mechanism={setup.mechanism!r} is unknown: choose one of {', '.join(map(repr, STRATEGIES))},"
            " or pass a Mechanism made with anechoic.calibrate (for other strategies, such as Toeplitz or"
            " Dense)."
        )
    if setup.max_grad_norm is None:
        raise ValueError(
            "max_grad_norm is missing: give the clip norm, or a Mechanism, which carries its own."
        )
    if setup.epsilon is None and setup.noise_multiplier is None:
        raise ValueError(
            "noise_multiplier is missing: give it, or a Mechanism, or use make_private_with_epsilon."
        )
    if setup.poisson_sampling and setup.mechanism in UNAMPLIFIED and setup.participation is None:
        logger.warning(
            "mechanism=%r: no amplification is proved for it, so batches come in a fixed order although"
            " poisson_sampling=True permits sampling.",
            setup.mechanism,
        )
    loader, delta = setup.data_loader, setup.delta
    if loader.batch_size is None or setup.participation is None:
        checks.is_shuffled(loader)
    if delta is None:
        delta = setup.examples**-1.1
        logger.info("target_delta is not given: the guarantee is printed at N^-1.1 = %.3g.", delta)
    made = plan(
        examples=setup.examples,
        batch_size=loader.batch_size,  # type: ignore[arg-type]
        steps=checks.planned_steps(loader, setup.epochs, setup.steps),
        epsilon=setup.epsilon,
        noise_multiplier=setup.noise_multiplier,
        delta=delta,
        dimension=sum(p.numel() for p in parameters),
        memory_budget=setup.memory_budget,
        random_sampling=setup.poisson_sampling,
        participation=setup.participation,
        strategy=setup.mechanism,
        clip_norm=setup.max_grad_norm,
        adjacency=setup.adjacency or "zero_out",
        unit=setup.unit or "example",
        drop_last=loader.drop_last,
    )
    logger.info("planned mechanism:\n%s", made)
    return made.mechanism, made


def begin(
    setup: Setup, mechanism: Mechanism, noise_key: bytes, sampling_key: bytes
) -> tuple[Run, tuple[Any, ...]]:
    """Wrap module, optimizer and loader: the run, and what make_private returns."""
    batches_under = _batches(mechanism, setup.data_loader)
    ledger = ReleaseLedger(mechanism.steps)
    feed = Feed(batches_under(sampling_key), sampling_key, setup.examples)
    loader = PrivateDataLoader(setup.data_loader, feed, ledger, batch_first=setup.batch_first)
    ghost = setup.grad_sample_mode == "ghost"
    options: dict[str, Any] = {"batch_first": setup.batch_first, "loss_reduction": setup.loss_reduction}
    if ghost:
        options["max_grad_norm"] = mechanism.clip_norm
        module: Any = watched_module(setup.module, wrap=setup.wrap_model, **options)
    else:
        module = prepare_module(setup.module, setup.grad_sample_mode, setup.wrap_model, **options)
    optimizer: Any = (GhostCorrelatedOptimizer if ghost else CorrelatedOptimizer)(
        setup.optimizer,
        noise_multiplier=mechanism.noise_multiplier,
        max_grad_norm=mechanism.clip_norm,
        expected_batch_size=mechanism.expected_batch_size,
        loss_reduction=setup.loss_reduction,
    )
    optimizer.bind(mechanism, ledger, module, lambda: watched_tensors(setup.module))
    run = Run(
        mechanism, ledger, setup.module, module, optimizer, loader, batches_under, noise_key, sampling_key
    )
    run.start()
    ledger.before_first = optimizer.rewatch  # until then the user may load weights
    logger.info(
        "batches: %s; the loader's own sampler is replaced. %r", mechanism.sampling.describe(), mechanism
    )
    if ghost:
        optimizer.watch = module.watch
        criterion = ghost_criterion(module, optimizer, setup.criterion, setup.loss_reduction)
        return run, (module, optimizer, criterion, loader)
    return run, (module, optimizer, loader)


def _batches(mechanism: Mechanism, loader: DataLoader[Any]) -> Any:
    """Batches as a function of the sampling key."""
    sampling = mechanism.sampling
    if isinstance(sampling, External):
        examples = len(loader.dataset)  # type: ignore[arg-type]
        given = Given(loader.batch_sampler, examples)  # type: ignore[arg-type]
        check_promise(mechanism.participation, given, mechanism.steps, examples)
        return lambda key: given
    shuffled = checks.is_shuffled(loader)

    def under(key: bytes) -> Batches:
        return batches_of(sampling, key, period=len(loader), shuffled=shuffled)

    return under
