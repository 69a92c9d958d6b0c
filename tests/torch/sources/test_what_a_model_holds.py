"""What reaches a model past its inputs, and whether a batch is watched still when something else happened."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from anechoic.errors import AnechoicError, DesynchronizedError, GuaranteeError
from tests.torch.setting import FEATURES, mechanism, start, step

SHARED = {"scale": 1.0}


class Scaled(nn.Module):
    """A layer, and factors where scripts put them."""

    def __init__(self, loops=False):
        super().__init__()
        self.layer, self.loops, self.kept = nn.Linear(FEATURES, 2), loops, None
        self.register_buffer("factor", torch.ones(1))
        self.plain, self._hidden, self.inside = torch.ones(1), 1.0, SimpleNamespace(scale=1.0)

    def forward(self, x):
        if self.loops:
            x.storage()  # which no transform of torch.func has
            self.kept = self.layer(x)
        scale = self._hidden * self.inside.scale * SHARED["scale"]
        return self.layer(x) * self.factor * self.plain * scale


def by_data(model, number):
    model.factor.data.copy_(number)


def by_slice(model, number):
    model.plain[0] = number


def by_view(model, number):
    model.plain.view(-1).mul_(number)


def hidden(model, number):
    model._hidden = number.item()


def in_an_object(model, number):
    model.inside.scale = number.item()


def in_a_global(model, number):
    SHARED["scale"] = number.item()


@pytest.mark.parametrize("put", [by_data, by_slice, by_view, hidden, in_an_object, in_a_global])
@pytest.mark.few(4)
def test_what_is_put_into_a_model_by_another_way_is_refused(put):
    run = start(model=Scaled(), mech=mechanism(steps=5), keys=False)
    x, _ = next(iter(run.loader))
    try:
        put(run.model, 1 / x.square().mean())
        with pytest.raises(DesynchronizedError, match=r"was made from the batch|uses a number that"):
            run.module(x)
    finally:
        SHARED["scale"] = 1.0
    assert run.engine.releases == 0


@pytest.mark.filterwarnings("ignore:TypedStorage")
def test_what_a_model_kept_while_its_rows_ran_is_not_used_in_the_loss():
    run = start(model=Scaled(loops=True), mech=mechanism(steps=5), keys=False)
    x, y = next(iter(run.loader))
    out = run.module(x)
    with pytest.raises(GuaranteeError, match=r"Scaled.kept kept it"):
        (F.cross_entropy(out, y) * run.model.kept.sum()).backward()


def test_weights_are_those_that_were_released_in_a_call_of_forward_too():
    run = start(mech=mechanism(steps=5), keys=False)
    x, _ = next(iter(run.loader))
    first = next(run.model.parameters())
    first.data.mul_(2)
    with pytest.raises(GuaranteeError, match="trainable parameter was changed"):
        run.module.forward(x)


def mixing(run, batch):
    x, y = batch
    F.cross_entropy(run.module(x - x.mean(0)), y).backward()
    run.optimizer.step()


def test_a_batch_whose_step_was_refused_is_watched_still():
    run = start(mech=mechanism(steps=5), keys=False)
    batch = next(iter(run.loader))
    with pytest.raises(AnechoicError, match="no gradient reached"):
        run.optimizer.step()
    with pytest.raises(DesynchronizedError, match="not one row an example"):
        mixing(run, batch)
    run.optimizer.zero_grad()
    step(run, batch)
    assert run.engine.releases == 1


def test_a_step_of_another_run_leaves_this_ones_batch_watched():
    one, other = (start(mech=mechanism(steps=5), keys=False) for _ in range(2))
    x, y = next(iter(one.loader))
    F.cross_entropy(one.module(x), y).backward()
    batch = next(iter(other.loader))
    one.optimizer.step()
    with pytest.raises(DesynchronizedError, match="not one row an example"):
        mixing(other, batch)


def small_mixes(x):
    return torch.fft.fft(x * 1e-10, dim=0).real * 1e10


def test_an_operation_without_a_rule_is_compared_in_the_size_of_its_numbers():
    run = start(mech=mechanism(steps=5), keys=False)
    x, y = next(iter(run.loader))
    with pytest.raises(DesynchronizedError, match="not one row an example"):
        F.cross_entropy(run.module(small_mixes(x)), y).backward()


def test_as_many_classes_as_the_data_have_are_a_number_of_the_batch():
    run = start(mech=mechanism(steps=5), keys=False)
    x, y = next(iter(run.loader))
    classes = F.one_hot(y)
    smooth = classes * 0.9 + 0.1 / classes.size(1)
    with pytest.raises(GuaranteeError, match="whose length the rows"):
        (F.log_softmax(run.module(x), 1) * -smooth).sum(1).mean().backward()


def test_an_operation_that_failed_half_way_may_have_written():
    run = start(mech=mechanism(steps=5), keys=False)
    x, y = next(iter(run.loader))
    weight, wrong = torch.ones(1), torch.ones(3)
    with pytest.raises(RuntimeError):
        torch._foreach_add_([weight, wrong], [x.mean().reshape(1), torch.ones(2)])
    with pytest.raises(GuaranteeError, match="mixes"):
        (F.cross_entropy(run.module(x), y) * weight).sum().backward()
