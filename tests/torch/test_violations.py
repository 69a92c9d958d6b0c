"""What once went through in silence: rows used twice, models changed aside, rows that are no examples."""

import copy
import os
import pickle
import threading

import pytest
import torch
from torch import nn
from torch.utils.data import Subset, TensorDataset

from anechoic.errors import (
    CheckpointError,
    DesynchronizedError,
    GuaranteeError,
    MismatchError,
    ReplayError,
    UnsupportedError,
)
from tests.marks import each_once
from tests.torch.setting import MODES, backward, data, network, start, step, train, weights

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


def test_a_redelivered_first_batch_opens_no_window():
    run = start()
    backward(run, next(iter(run.loader)))
    with torch.no_grad():
        next(run.model.parameters()).mul_(0.5)
    run.optimizer.abandon_batch()
    with pytest.raises(GuaranteeError, match="by something else"):
        train(run, 1)


@pytest.mark.parametrize(("option", "value"), [("max_norm", 1.0), ("sparse", True)])
def test_embeddings_that_change_themselves_are_refused(option, value):
    model = nn.Sequential(nn.Embedding(9, 4, **{option: value}), nn.Flatten(), nn.Linear(24, 2))
    with pytest.raises(UnsupportedError, match=rf"0 is Embedding\({option}={value}\)"):
        start(model=model)


class Mean(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = nn.Linear(6, 2)
        self.register_buffer("mean", torch.tensor([float("nan")] * 6))

    def forward(self, x):
        if self.training and not self.mean.isnan().all():
            self.mean.data.mul_(0.9).add_(0.1 * x.detach().mean(0))
        return self.last(x)


@pytest.mark.slow
def test_buffers_are_compared_by_value():
    run = start(model=Mean())
    train(run, 2)
    run.model.mean.zero_()
    with pytest.raises(GuaranteeError, match="mean changed during training"):
        train(run, 3)
    quiet = start(model=Mean())
    quiet.model.mean.mul_(1.0)  # the same values
    train(quiet, 2)
    hidden = Mean()
    hidden.mean.zero_()
    with pytest.raises(GuaranteeError, match="mean changed during training"):
        train(start(model=hidden), 1)


# -- rows ------------------------------------------------------------------------------------------


class Positions(nn.Module):
    def __init__(self, expand):
        super().__init__()
        self.place, self.last, self.expand = nn.Embedding(6, 3), nn.Linear(3, 2), expand

    def forward(self, x):
        place = torch.arange(6).repeat(len(x), 1) if self.expand else torch.arange(6)
        return self.last((self.place(place) * x[:, :, None]).sum(1))


@pytest.mark.filterwarnings("ignore:In CPU autocast")
@pytest.mark.slow
def test_positions_are_refused_unless_expanded_under_ghost_clipping():
    run = start("ghost", model=Positions(False))
    with pytest.raises(GuaranteeError, match=r"place \(Embedding\).*does not come from the examples"):
        train(run, 1)
    assert run.engine.releases == 0
    train(start("ghost", model=Positions(True)), 2)
    train(start("rows", model=Positions(False)), 2)


def test_a_copy_of_the_model_is_not_watched():
    run = start()
    batch = next(iter(run.loader))
    copied = copy.deepcopy(run.model)
    for hook in copied[0]._forward_pre_hooks.values():
        hook(copied[0], (torch.zeros(3, 6),), {})
    pickle.dumps(run.model[0]._forward_pre_hooks)
    step(run, batch)


# -- threads, copies, scalers ----------------------------------------------------------------------


def test_one_step_at_a_time():
    run = start()
    backward(run, next(iter(run.loader)))
    seen = []

    def attempt():
        try:
            run.optimizer.step()
        except DesynchronizedError as error:
            seen.append(str(error))

    def again(_):
        thread = threading.Thread(target=attempt)
        thread.start()
        thread.join()

    run.optimizer.attach_step_hook(again)
    run.optimizer.step()
    assert "while it runs" in seen[0]
    assert run.engine.releases == 1


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
    with pytest.raises(CheckpointError, match="folder .*nowhere does not exist"):
        run.engine.save_checkpoint(path=tmp_path / "nowhere" / "c")
    with pytest.raises(TypeError, match="make_private has no argument 'epoch'.*epochs"):
        start(epoch=3)


def test_without_interference_weights_are_as_before():
    assert torch.equal(weights(network()), weights(start().model))
    train(start(dataset=TensorDataset(*data(40).tensors)), 3)


@pytest.mark.parametrize("mode", ["rows", "ghost"])
@pytest.mark.parametrize("what", ["clipping", "divisor"])
def test_parts_of_a_step_that_are_replaced_are_refused(mode, what):
    run = start(mode)
    train(run, 1)
    batch = next(iter(run.loader))
    run.optimizer.zero_grad()
    backward(run, batch)
    if what == "clipping":
        run.optimizer.source.clipping = type(run.optimizer.source.clipping)(100.0)
    else:
        run.optimizer.release.divisor = 1e-3
    with pytest.raises(MismatchError, match=f"{what}=.* when the run began"):
        run.optimizer.step()
    assert run.engine.releases == 1
