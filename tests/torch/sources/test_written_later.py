"""What is written to between the call of the model and the release moves no gradient of another row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

import anechoic as an
from anechoic.errors import AnechoicError, DesynchronizedError, GuaranteeError
from anechoic.sampling import FixedOrder
from anechoic.strategies import Identity
from anechoic.torch import PrivacyEngine
from anechoic.torch.sources import single_rows

ROWS = 8
Loop = Callable[[Any, Any, Any, Tensor, Tensor, dict[str, Any]], None]


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


class Checkpointed(nn.Module):
    """Rows are taken one after another, once more in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = plain()

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.inner, x, use_reentrant=False)


class Holding(nn.Module):
    """Adds what it holds."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = plain()
        self.bank: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x if self.bank is None else x + self.bank)


def sums(
    make: Callable[[], nn.Module],
    loop: Loop,
    first: list[float],
    *,
    mode: str = "rows",
    steps: int = 1,
    reduction: str = "mean",
) -> list[Tensor]:
    """Releases of `steps` passes over one batch whose row 0 is `first`: clip norm 1, next to no noise."""
    torch.manual_seed(0)
    model = make()
    x, y = torch.randn(ROWS, 4), torch.arange(ROWS) % 3
    x[0] = torch.tensor(first)
    mechanism = an.calibrate(
        Identity(steps), sampling=FixedOrder(ROWS, ROWS, steps), delta=1e-5, noise_multiplier=1e-6
    )
    made = PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.0),
        criterion=nn.CrossEntropyLoss(),
        grad_sample_mode=mode,
        data_loader=DataLoader(TensorDataset(x, y), batch_size=ROWS),
        poisson_sampling=False,
        mechanism=mechanism,
        loss_reduction=reduction,
    )
    private, optimizer, criterion, loader = made if len(made) == 4 else (*made[:2], F.cross_entropy, made[2])
    found: list[Tensor] = []
    kept: dict[str, Any] = {}
    for _ in range(steps):
        for features, labels in loader:
            optimizer.zero_grad()
            loop(private, optimizer, criterion, features, labels, kept)
            divisor = ROWS if reduction == "mean" else 1
            found.append(divisor * torch.cat([p.grad.flatten() for p in optimizer.params]))
    return found


def moved(make: Callable[[], nn.Module], loop: Loop, **options: Any) -> float:
    """By how much another row 0 moves a release at most; 2 is permitted."""
    one, other = (sums(make, loop, row, **options) for row in ([0.1, 0.2, -0.3, 0.4], [9.0, -7.0, 5.0, 3.0]))
    return max(float((a - b).norm()) for a, b in zip(one, other, strict=True))


def add_first(x: Tensor) -> None:
    x.add_(3 * x[:1].clone())


def add_first_unseen(x: Tensor) -> None:
    x.data.add_(3 * x.data[:1])


@pytest.mark.parametrize("write", [add_first, add_first_unseen])
@pytest.mark.parametrize("make", [plain, Checkpointed])
@pytest.mark.parametrize("mode", ["rows", "vmap_loss"])
def test_inputs_that_are_written_to_after_the_call(
    write: Callable[[Tensor], None], make: Callable[[], nn.Module], mode: str
) -> None:
    def loop(model: Any, optimizer: Any, criterion: Any, x: Tensor, y: Tensor, kept: Any) -> None:
        loss = criterion(model(x), y)
        write(x)
        loss.backward()
        optimizer.step()

    assert moved(make, loop, mode=mode) <= 2.0


@pytest.mark.parametrize("write", [add_first, add_first_unseen])
def test_inputs_of_traced_layers_that_are_written_to(write: Callable[[Tensor], None]) -> None:
    def loop(model: Any, optimizer: Any, criterion: Any, x: Tensor, y: Tensor, kept: Any) -> None:
        loss = criterion(model(x), y)
        write(x)
        loss.backward()
        optimizer.step()

    with pytest.raises((AnechoicError, RuntimeError), match=r"several examples|inplace operation"):
        sums(plain, loop, [1.0, 2.0, 3.0, 4.0], mode="ghost")


def test_a_gradient_that_is_written_to_after_it_was_looked_at() -> None:
    def loop(model: Any, optimizer: Any, criterion: Any, x: Tensor, y: Tensor, kept: Any) -> None:
        public, gradients = torch.ones(1, requires_grad=True) * 1.0, []

        def write(_: Tensor) -> None:
            gradients[0].copy_(50 * gradients[0][:1].expand(ROWS, -1))

        public.register_hook(write)
        out = model(x)
        out.register_hook(gradients.append)
        (F.cross_entropy(out, y, reduction="sum") + 0 * public.sum()).backward()
        assert len(gradients) == 1
        optimizer.step()

    assert moved(plain, loop, reduction="sum") <= 2.0


def test_values_are_put_back_by_the_mask_that_picked_them_alone() -> None:
    def loop(model: Any, optimizer: Any, criterion: Any, x: Tensor, y: Tensor, kept: Any) -> None:
        out = model(x)
        mask = (x.sum(1) > -1e9) & (torch.arange(len(x)) == 0)
        picked = out.detach()[mask]
        mask.logical_not_()
        others = torch.zeros_like(out)
        others[mask] = picked
        (30 * (out * others).sum(1)).mean().backward()
        optimizer.step()

    with pytest.raises(GuaranteeError, match="index_put of more than one number"):
        sums(plain, loop, [9.0, -7.0, 5.0, 3.0])


@pytest.mark.parametrize("place", ["before the update", "after it", "step_hook"])
def test_what_a_hook_on_steps_keeps_is_of_an_earlier_batch(place: str) -> None:
    def loop(model: Any, optimizer: Any, criterion: Any, x: Tensor, y: Tensor, kept: Any) -> None:
        def keep(*_: Any) -> None:
            kept["bank"] = 40 * kept["out"].detach()[0]

        out = model(x)
        if not kept:
            register = {
                "before the update": optimizer.register_step_pre_hook,
                "after it": optimizer.register_step_post_hook,
                "step_hook": optimizer.attach_step_hook,
            }
            register[place](keep)
        loss = (out * kept["bank"]).sum(1).mean() if "bank" in kept else criterion(out, y)
        kept["out"] = out
        loss.backward()
        optimizer.step()

    with pytest.raises(GuaranteeError, match="earlier batch"):
        sums(plain, loop, [9.0, -7.0, 5.0, 3.0], steps=2)


@pytest.mark.parametrize("first", [0, 1])
def test_an_attribute_of_the_model_that_holds_something_of_an_earlier_batch(first: int) -> None:
    def loop(model: Any, optimizer: Any, criterion: Any, x: Tensor, y: Tensor, kept: Any) -> None:
        criterion(model(x), y).backward()
        optimizer.step()
        kept["step"] = kept.get("step", -1) + 1
        if kept["step"] >= first:
            model._module.bank = 30 * x[0]

    with pytest.raises(DesynchronizedError, match="bank of the model was made from the batch"):
        sums(Holding, loop, [9.0, -7.0, 5.0, 3.0], steps=3)


@pytest.mark.parametrize("mode", ["rows", "vmap_loss"])
def test_a_closure_that_holds_something_of_an_earlier_batch(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(single_rows, "RATE", 1.0)  # it is seen in steps that are compared
    bank: list[Tensor] = []

    class Closed(Holding):
        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x + bank[0] if bank else x)

    def loop(model: Any, optimizer: Any, criterion: Any, x: Tensor, y: Tensor, kept: Any) -> None:
        criterion(model(x), y).backward()
        optimizer.step()
        bank[:] = [30 * x[0]]

    with pytest.raises(DesynchronizedError, match="holds a tensor of shape"):
        sums(Closed, loop, [9.0, -7.0, 5.0, 3.0], steps=2, mode=mode)
