"""What once went through in silence: rows used twice, models changed aside, rows that are no examples."""

import copy
import os
import pickle

import pytest
import torch
from torch import nn
from torch.utils.data import Subset

from anechoic.errors import CheckpointError, GuaranteeError, MismatchError, ReplayError, UnsupportedError
from tests.marks import each_once
from tests.torch.setting import MODES, backward, data, network, start, step, train

# -- noise rows ------------------------------------------------------------------------------------


def test_two_engines_with_one_key_are_refused(one_process):
    first, second = start(), start()
    train(first, 2)
    with pytest.raises(ReplayError, match=r"already made release 0 under this key.*noise_key of its own"):
        train(second, 1)
    assert second.engine.releases == 0
    train(first, 3)


def test_a_run_goes_on_in_one_engine_only(one_process, tmp_path):
    first = start(keys=False)
    train(first, 2)
    first.engine.save_checkpoint(path=tmp_path / "c")
    second = start(keys=False)
    second.engine.load_checkpoint(path=tmp_path / "c")
    train(second, 3)
    with pytest.raises(ReplayError, match="already made release 2"):
        train(first, 3)
    train(second, 4)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_process_cannot_go_on():
    run = start()
    batch = next(iter(run.loader))
    child = os.fork()
    if child == 0:  # pragma: no cover - another process
        code = 1
        try:
            step(run, batch)
        except GuaranteeError as error:
            code = 0 if "fork after make_private" in str(error) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    step(run, batch)


# -- the model -------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("before", [0, 2])
def test_parameters_change_by_step_alone(mode, before):
    run = start(mode)
    train(run, before)
    backward(run, next(iter(run.loader)))
    with torch.no_grad():
        next(run.model.parameters()).mul_(0.5)
    with pytest.raises(GuaranteeError, match="by something else than optimizer.step"):
        run.optimizer.step()
    assert run.engine.releases == before


def test_a_second_optimizer_is_refused():
    run = start("rows")
    backward(run, next(iter(run.loader)))
    for p in run.model.parameters():  # rows by themselves leave nothing there
        p.grad = torch.ones_like(p)
    torch.optim.SGD(run.model.parameters(), lr=1.0).step()
    with pytest.raises(GuaranteeError, match="a second optimizer"):
        run.optimizer.step()


def test_weights_may_be_loaded_until_the_first_batch():
    run = start()
    run.model.load_state_dict(network(seed=3).state_dict())
    train(run, 1)
    run.model.load_state_dict(network(seed=4).state_dict())
    with pytest.raises(GuaranteeError, match="before the first batch"):
        train(run, 2)


@pytest.mark.parametrize(("option", "value"), [("max_norm", 1.0), ("sparse", True)])
def test_embeddings_that_change_themselves_are_refused(option, value):
    model = nn.Sequential(nn.Embedding(9, 4, **{option: value}), nn.Flatten(), nn.Linear(24, 2))
    with pytest.raises(UnsupportedError, match=rf"0 is Embedding\({option}={value}\)"):
        start(model=model)


# -- rows ------------------------------------------------------------------------------------------


# -- threads, copies, scalers ----------------------------------------------------------------------


@pytest.mark.parametrize(("how", "mode"), each_once([copy.copy, copy.deepcopy, pickle.dumps], MODES))
@pytest.mark.few(2)
def test_runs_are_not_copied(mode, how):
    run, same = start(mode), start(mode)
    for thing in (run.engine, run.optimizer, run.optimizer.ledger):
        with pytest.raises(TypeError, match="cannot be copied or pickled"):
            how(thing)
    assert torch.equal(train(run, 2), train(same, 2))


def test_gradient_scalers_are_refused():
    run = start()
    scaler = torch.amp.GradScaler("cpu")
    x, y = next(iter(run.loader))
    scaler.scale(run.criterion(run.forward(x), y)).backward()
    for p in run.model.parameters():
        p.grad = torch.zeros_like(p)
    with pytest.raises(UnsupportedError, match="bfloat16 and no GradScaler"):
        scaler.step(run.optimizer)
    assert run.engine.releases == 0


# -- data and messages -----------------------------------------------------------------------------


def test_the_data_set_keeps_its_length():
    rows = [(torch.zeros(6), 0) for _ in range(40)]
    run = start(dataset=rows)
    train(run, 1)
    rows.append((torch.ones(6), 1))
    with pytest.raises(MismatchError, match="has 41 examples, and had 40"):
        train(run, 2)


@pytest.mark.parametrize("indices", [[0] * 40, [*range(39), -80]])
def test_subsets_with_duplicates_are_refused(indices):
    with pytest.raises(UnsupportedError, match="more than once"):
        start(dataset=Subset(Subset(data(80), indices), range(40)).dataset)
    start(dataset=Subset(data(80), range(40)))


@pytest.mark.slow
def test_unsupported_modules_name_the_remedy():
    with pytest.raises(GuaranteeError, match="get_compatible_module"):
        start("ghost", model=nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)))
    with pytest.raises(UnsupportedError, match=r"call model.train\(\)"):
        start(model=network().eval())
    with pytest.raises(UnsupportedError, match="a part of module was made by torch.compile.*_orig_mod"):
        start(model=nn.Sequential(torch.compile(network())))
    with pytest.raises(UnsupportedError, match="0 was made by torch.jit.*pass the plain module"):
        start(model=nn.Sequential(torch.jit.script(nn.Linear(6, 2))))


def test_messages_name_folder_method_and_argument(tmp_path):
    run = start()
    with pytest.raises(CheckpointError, match="nowhere.* in a folder that exists"):
        run.engine.save_checkpoint(path=tmp_path / "nowhere" / "c")
    with pytest.raises(TypeError, match="make_private has no argument 'epoch'.*epochs"):
        start(epoch=3)
