"""Parameters are those that step() left, however they were changed."""

import pytest
import torch
from torch import nn

from anechoic.errors import GuaranteeError
from tests.marks import each_pair
from tests.torch.setting import MODES, backward, network, start, train, weights


def fused(run):
    torch.optim.AdamW(run.model.parameters(), lr=0.1, fused=True).step()


def through_data(run):
    for p in run.model.parameters():
        p.data.add_(torch.ones_like(p), alpha=0.1)


def by_one_bit(run):
    next(run.model.parameters()).data.view(torch.int32)[0, 0] ^= 1


@pytest.mark.parametrize(("mode", "change"), each_pair(MODES, [fused, through_data, by_one_bit]))
def test_parameters_change_in_step_alone(mode, change):
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


def climbed(run, batch):
    """SAM's step along the raw gradient of the batch, taken on a copy of the model."""
    copied = network()
    copied.load_state_dict(run.model.state_dict())
    nn.functional.cross_entropy(copied(batch[0]), batch[1]).backward()
    with torch.no_grad():
        for p, q in zip(run.model.parameters(), copied.parameters(), strict=True):
            p.add_(q.grad, alpha=0.1)


@pytest.mark.parametrize("mode", [*MODES, "vmap_loss"])
def test_a_change_that_is_put_back_before_step_is_seen(mode):
    run, same = start(mode), start(mode)
    train(run, 1), train(same, 1)
    batch, before = next(iter(run.loader)), weights(run.model)
    climbed(run, batch)
    with pytest.raises(GuaranteeError, match="something else than optimizer.step"):
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
