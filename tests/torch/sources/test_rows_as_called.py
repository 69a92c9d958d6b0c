"""Rows side by side under what a script calls the model with: autocast, torch.compile."""

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from anechoic.errors import GuaranteeError
from tests.floats import same_bits
from tests.torch.setting import network, start, step, train, weights
from tests.torch.sources.row_passes_setting import each_alone, rowwise


@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")
@pytest.mark.parametrize("norm", [nn.LayerNorm(8), nn.GroupNorm(2, 8), nn.RMSNorm(8)])
def test_normalisations_under_autocast_are_those_of_each_row_alone(norm):
    torch.manual_seed(0)
    norm = copy.deepcopy(norm)
    with torch.no_grad():
        norm.weight.normal_()
    model, x = nn.Sequential(nn.Linear(6, 8), norm, nn.Linear(8, 3)), torch.randn(4, 6)
    found, alone = rowwise(model, x, autocast=True)[1], each_alone(model, x, autocast=True)
    assert (found - alone).norm() < 0.02 * alone.norm()


def test_a_model_that_was_compiled_is_made_private_as_the_model_that_it_is():
    model = network()
    run = start(model=torch.compile(model, backend="eager"))
    assert run.module._module is model
    step(run, next(iter(run.loader)))
    other = start()
    step(other, next(iter(other.loader)))
    assert same_bits(weights(model), weights(other.model))


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # of dynamo, which looks into what follows the rows
def test_a_whole_pass_that_is_compiled_makes_the_same_releases():
    run = start()

    def two(loader, optimizer, module):
        for number, (x, y) in enumerate(loader):
            optimizer.zero_grad()
            F.cross_entropy(module(x), y).backward()
            optimizer.step()
            if number == 1:
                break

    torch.compile(two, backend="eager")(run.loader, run.optimizer, run.module)
    assert run.engine.releases == 2
    assert same_bits(weights(run.model), train(start(), 2))


def test_a_compiled_private_model_still_has_rows_that_must_not_meet():
    run = start()
    model = torch.compile(run.module, backend="eager")
    x, y = next(iter(run.loader))
    output = model(x)
    F.cross_entropy(output - output.mean(0), y).backward()
    with pytest.raises(GuaranteeError, match="sub: a number of all rows"):
        run.optimizer.step()


def test_a_copy_and_a_pickle_of_a_private_model_are_plain():
    run = start()
    step(run, next(iter(run.loader)))
    x = torch.randn(3, 6)
    for other in (copy.deepcopy(run.module), pickle.loads(pickle.dumps(run.module))):
        assert torch.allclose(other.train()(x), run.model.eval()(x))
