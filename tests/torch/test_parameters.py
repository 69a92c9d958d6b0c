"""Parameters and buffers are compared by their bits, however they were changed."""

import pytest
import torch
from torch import nn

from anechoic.errors import GuaranteeError
from anechoic.torch import guard as watch
from anechoic.torch.guard import checksum
from tests.marks import each_once, each_pair, in_turn
from tests.torch.setting import MODES, backward, data, network, start, step, train, weights


def fused(run):
    torch.optim.AdamW(run.model.parameters(), lr=0.1, fused=True).step()


def through_data(run):
    for p in run.model.parameters():
        p.data.add_(torch.ones_like(p), alpha=0.1)


def by_one_bit(run):
    next(run.model.parameters()).data.view(torch.int32)[0, 0] ^= 1


@pytest.mark.parametrize(
    ("mode", "copied", "change"), each_pair(MODES, [True, False], [fused, through_data, by_one_bit])
)
@pytest.mark.few(5)
def test_parameters_change_in_step_alone(mode, copied, change, monkeypatch):
    monkeypatch.setattr(watch, "COPIED", 10**7 if copied else 0)
    model = network()
    with torch.no_grad():
        model[0].weight[0, 0] = 0.0
    run = start(mode, model=model)
    batch = next(iter(run.loader))
    backward(run, batch)
    for p in run.model.parameters():
        p.grad = torch.ones_like(p)
    change(run)
    with pytest.raises(GuaranteeError, match="by something else than optimizer.step"):
        run.optimizer.step()
    assert run.engine.releases == 0


@pytest.mark.parametrize("copied", [True, False])
def test_step_itself_is_no_change(copied, monkeypatch):
    monkeypatch.setattr(watch, "COPIED", 10**7 if copied else 0)
    run, same = start(), start()
    assert torch.equal(train(run, 4), train(same, 4))


class Grows(nn.Module):
    """Keeps what it needs for the longest batch so far in a buffer, as rotary embeddings do."""

    def __init__(self, kind):
        super().__init__()
        self.last, self.kind = nn.Linear(6, 2), kind
        if kind == "grows":
            self.register_buffer("cache", torch.zeros(0), persistent=False)

    def forward(self, x):
        if self.kind == "grows" and len(self.cache) < 6:
            self.cache = torch.ones(6)
        if self.kind == "appears" and not hasattr(self, "cache"):
            self.register_buffer("cache", torch.ones(6), persistent=False)
        return self.last(x * self.cache)


@pytest.mark.parametrize("kind", ["grows", "appears"])
@pytest.mark.slow
def test_buffers_that_grow_are_refused_with_the_remedy(kind):
    run = start(model=Grows(kind))
    with pytest.raises(
        GuaranteeError, match=r"cache (appeared|went from shape \(0,\) to \(6,\)).*longest input"
    ):
        train(run, 1)
    ready = Grows(kind)
    with torch.no_grad():
        ready(torch.zeros(1, 6))
    train(start(model=ready), 2)


@pytest.mark.parametrize("compared", [10**7, 0])
def test_frozen_parameters_are_compared_by_bits(compared, monkeypatch):
    monkeypatch.setattr(watch, "COMPARED", compared)
    model = network()
    model[0].requires_grad_(False)
    run = start(model=model)
    train(run, 1)
    model[0].weight.data.mul_(1.5)
    with pytest.raises(GuaranteeError, match=r"0\.weight changed during training"):
        train(run, 2)


@in_turn("shape", [(), (0,), (3,), (7, 13), (40_000,), (600_001,)])
@in_turn("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.uint8])
@pytest.mark.slow
def test_a_checksum_sees_every_change(shape, dtype):
    tensor = (torch.rand(shape, generator=torch.Generator().manual_seed(0)) * 100).to(dtype)
    assert torch.equal(checksum(tensor), checksum(tensor.clone()))
    if tensor.numel():
        for place in {0, tensor.numel() // 2, tensor.numel() - 1}:
            changed = tensor.clone()
            changed.view(-1)[place] += 1
            assert not torch.equal(checksum(tensor), checksum(changed))


def test_gradients_changed_after_clipping_are_none_of_the_sum_in_ghost_mode():
    run = start("ghost", dataset=data(40))
    batches = iter(run.loader)
    backward(run, next(batches))
    changed = [p.grad is not None and p.grad.data.mul_(100.0) is not None for p in run.model.parameters()]
    if any(changed):  # a source may keep its sums out of p.grad
        with pytest.raises(GuaranteeError, match=r"p.grad changed"):
            run.optimizer.step()
        run.optimizer.zero_grad()
    run.optimizer.abandon_batch()
    step(run, next(iter(run.loader)))


def climbed(run, batch):
    """SAM's step along the raw gradient of the batch, taken on a copy of the model."""
    copied = network()
    copied.load_state_dict(run.model.state_dict())
    nn.functional.cross_entropy(copied(batch[0]), batch[1]).backward()
    with torch.no_grad():
        for p, q in zip(run.model.parameters(), copied.parameters(), strict=True):
            p.add_(q.grad, alpha=0.1)


@pytest.mark.parametrize(("mode", "copied"), each_once([*MODES, "vmap_loss"], [True, False]))
@pytest.mark.few(2)
def test_a_change_that_is_put_back_before_step_is_seen(mode, copied, monkeypatch):
    monkeypatch.setattr(watch, "COPIED", 10**7 if copied else 0)
    run, same = start(mode), start(mode)
    train(run, 1), train(same, 1)
    batch, before = next(iter(run.loader)), weights(run.model)
    climbed(run, batch)
    with pytest.raises(GuaranteeError, match=r"put back before step\(\), as of SAM"):
        backward(run, batch)
    torch.nn.utils.vector_to_parameters(before, run.model.parameters())
    run.optimizer.abandon_batch()
    assert torch.equal(train(run, 3), train(same, 3))


@pytest.mark.parametrize("mode", [*MODES, "vmap_loss"])
@pytest.mark.few(2)
def test_averaged_weights_may_be_evaluated_between_batches_and_without_gradients(mode):
    run, same = start(mode), start(mode)
    train(run, 1), train(same, 1)
    batch = next(iter(run.loader))
    before = weights(run.model)
    torch.nn.utils.vector_to_parameters(0.5 * before, run.model.parameters())
    with torch.no_grad():
        run.forward(batch[0])
    torch.nn.utils.vector_to_parameters(before, run.model.parameters())
    assert torch.equal(train(run, 2), train(same, 2))
