"""Adam for correlated noise: it divides by what independent noise would leave, and is as good as SGD then."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn, optim

from anechoic._validate import Array, positive_float
from anechoic.errors import MismatchError


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
