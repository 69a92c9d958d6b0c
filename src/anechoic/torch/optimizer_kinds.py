"""Kinds of optimizers: what a plan needs to know of their updates, they of the noise, and an Adam for it."""

from __future__ import annotations

import copy
import logging
import math
import warnings
from collections.abc import Callable, Iterable
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn, optim
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from anechoic._validate import Array, positive_float
from anechoic.errors import MismatchError
from anechoic.losses.dispatch import error
from anechoic.mechanism.calibrate import calibrate
from anechoic.mechanism.mechanism import Mechanism
from anechoic.planning.records import OptimizerKind
from anechoic.planning.update import UpdateRule, rates_of, update_of
from anechoic.sampling import Poisson
from anechoic.strategies import Identity
from anechoic.workloads import exponential_decay

logger = logging.getLogger("anechoic")


class CorrectedAdam(optim.Optimizer):
    """Adam (or AdamW) that divides by the second moment which independent noise would leave.

    Adam divides by the root of a running mean of squared gradients, which under differential privacy is
    mostly noise. Correlated noise is larger in a single step and smaller in sums, so that plain Adam takes
    smaller steps with it, by as much as `PlanRow.step_noise` is larger: learning rates do not carry over. The
    variances s_t^2 of the noise of all steps are public, and so is r^2, that of independent noise with the
    same guarantee. Here v_t is replaced by

        max(v_t - m_t, 0) + r^2,

    with m_t the same running mean of s_t^2. Where noise is independent that is max(v_t, r^2), so nearly Adam.
    It is post-processing: the guarantee is that of the mechanism. `PrivacyEngine` says what the noise is when
    it makes the optimizer private; before that, and without it, this is Adam.

    Args:
        params: as for torch.optim.Adam.
        lr, betas, eps, weight_decay: as for torch.optim.Adam.
        decoupled_weight_decay: whether weights decay as in AdamW.

    Raises:
        ValueError: for a rate, beta, eps or decay out of range.

    References:
        After DP-AdamBC (Tang, Shpilevskiy, Lecuyer: DP-AdamBC: Your DP-Adam Is Actually DP-SGD, AAAI 2024),
        which subtracts the variance of independent noise and keeps a constant.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        decoupled_weight_decay: bool = False,
    ) -> None:
        if not lr >= 0 or not eps >= 0 or not weight_decay >= 0:
            raise ValueError(f"lr={lr}, eps={eps}, weight_decay={weight_decay}: all must be >= 0.")
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"betas={betas} must lie in [0, 1).")
        options = {"weight_decay": weight_decay, "decoupled_weight_decay": decoupled_weight_decay}
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, **options})
        self._variances: Array | None = None
        self._reference = 0.0

    def expect_noise(self, variances: Array, reference: float) -> None:
        """Take the variances of an entry of the noise in the mean gradients, shape (n,), and r^2 > 0."""
        self._variances = np.asarray(variances, dtype=np.float64)
        self._reference = positive_float("reference", reference)

    def _mean_of_variances(self, beta: float, step: int) -> float:
        """Return the bias-corrected running mean of s^2 after `step` steps."""
        known = 0 if self._variances is None else len(self._variances)
        if self._variances is None or step > known:
            raise MismatchError(
                f"step {step} of CorrectedAdam, whose noise is known for {known} steps: make a new optimizer"
                " for another run."
            )
        weights = beta ** np.arange(step - 1, -1, -1.0)
        return float(weights @ self._variances[:step] / weights.sum())

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update the weights from p.grad; return what the closure returned."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self._update(p, p.grad, group)
        return loss

    def _update(self, p: nn.Parameter, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[p]
        if not state:
            state["step"] = 0
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(p), torch.zeros_like(p)
        state["step"] += 1
        step, (first, second) = int(state["step"]), group["betas"]
        if group["weight_decay"] and group["decoupled_weight_decay"]:
            p.mul_(1 - group["lr"] * group["weight_decay"])
        elif group["weight_decay"]:
            gradient = gradient.add(p, alpha=group["weight_decay"])
        mean: Tensor = state["exp_avg"].mul_(first).add_(gradient, alpha=1 - first)
        square: Tensor = state["exp_avg_sq"].mul_(second).addcmul_(gradient, gradient, value=1 - second)
        known = square / (1 - second**step)
        if self._variances is not None:
            known = known.sub_(self._mean_of_variances(second, step)).clamp_(min=0.0).add_(self._reference)
        p.addcdiv_(mean, known.sqrt_().add_(group["eps"]), value=-group["lr"] / (1 - first**step))


#: Optimizers that are planned as sums. Muon's (torch 2.9) matrices are orthogonal whatever the noise of a
#: step: it was as good as momentum with noise planned for sums, and better than with noise planned for its
#: buffer ('What was measured').
_SUMS = (optim.ASGD, CorrectedAdam, *([optim.Muon] if hasattr(optim, "Muon") else []))
#: What takes more than this of the parameters in a step is no weight decay that a plan can be for.
MOST_DECAY = 0.5


def tell_noise(optimizer: optim.Optimizer, mechanism: Mechanism, loss_reduction: str) -> None:
    """Tell `CorrectedAdam` what the noise of each step is."""
    if not isinstance(optimizer, CorrectedAdam):
        return
    scale = mechanism.clip_norm / (mechanism.expected_batch_size if loss_reduction == "mean" else 1.0)
    of_steps = error(exponential_decay(mechanism.steps, 0.0), mechanism.strategy).per_step
    variances = np.square(scale * mechanism.noise_std * of_steps)
    optimizer.expect_noise(variances, (scale * independent_noise_std(mechanism)) ** 2)


def independent_noise_std(mechanism: Mechanism) -> float:
    """Noise std of independent noise with the same guarantee, of Poisson sampling where batches are drawn."""
    sampling = mechanism.sampling
    if mechanism.amplified:
        size = max(1, math.floor(mechanism.expected_batch_size))
        sampling = Poisson(cast(int, sampling.examples), size, mechanism.steps)
    epsilon = float(mechanism.epsilon())
    if epsilon == 0.0:
        return mechanism.noise_std
    same: Any = {name: getattr(mechanism, name) for name in ("delta", "adjacency", "unit")}
    made = calibrate(Identity(mechanism.steps), sampling=sampling, epsilon=epsilon, **same)
    return min(made.noise_std, mechanism.noise_std)


@update_of.register
def _(optimizer: optim.Optimizer) -> UpdateRule:
    """Of the group with the most parameters; unknown optimizers are taken for kin of Adam."""
    kind: OptimizerKind = "sums" if isinstance(optimizer, _SUMS) else "adam"
    kind = "sgd" if isinstance(optimizer, optim.SGD) else kind
    group = max(optimizer.param_groups, key=_size)
    rate = max(float(group.get(name, 0.0)) for name in ("initial_lr", "max_lr", "lr"))
    beta = float(group["betas"][0] if "betas" in group else group.get("momentum", 0.0))
    if kind == "sums" or not 0.0 <= beta < 1.0:
        return UpdateRule(kind, rate=rate)
    if kind == "adam":
        damped, name = beta if "betas" in group else 0.0, type(optimizer).__name__
        return UpdateRule(kind, beta, dampening=damped, rate=rate, name=name)
    # the decay of a step goes through the velocity, which adds up 1 / (1 - beta) of it
    decay = float(group.get("initial_lr", group["lr"])) * float(group["weight_decay"]) / (1.0 - beta)
    return UpdateRule(
        kind,
        beta,
        decay if decay <= MOST_DECAY else 0.0,
        nesterov=bool(group["nesterov"]),
        dampening=float(group["dampening"]) if beta else 0.0,
        rate=rate,
    )


@rates_of.register
def _(scheduler: LRScheduler) -> Callable[[int], Array] | None:
    """Those of a copy that is stepped on, from where the scheduler is; the scheduler itself stays there."""
    if isinstance(scheduler, ReduceLROnPlateau):
        logger.warning(
            "scheduler=ReduceLROnPlateau follows losses: the plan is for a constant learning rate, and a loss"
            " of private data is outside of the guarantee."
        )
        return None

    def rates(count: int) -> Array:
        stand_in, groups = _stand_in(scheduler.optimizer), scheduler.optimizer.param_groups
        group = max(range(len(groups)), key=lambda i: _size(groups[i]))
        copied = copy.deepcopy(scheduler, {id(scheduler.optimizer): stand_in})
        found = np.empty(count)
        with warnings.catch_warnings():  # of steps in another order, and of those behind the last
            warnings.simplefilter("ignore")
            for t in range(count):
                found[t] = stand_in.param_groups[group]["lr"]
                if t + 1 < count:
                    copied.step()
        return found

    return rates


def _size(group: dict[str, Any]) -> int:
    return sum(p.numel() for p in group["params"])


def _stand_in(optimizer: optim.Optimizer) -> optim.Optimizer:
    """Make an optimizer with the groups of another one, and one number as the parameters of each."""
    groups = [{**group, "params": [torch.zeros(1, requires_grad=True)]} for group in optimizer.param_groups]
    found = optim.SGD(groups, lr=1.0)
    for made, group in zip(found.param_groups, optimizer.param_groups, strict=True):
        made.update({key: value for key, value in group.items() if key != "params"})
    return found
