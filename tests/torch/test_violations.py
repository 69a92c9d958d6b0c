"""What once went through in silence: rows used twice, models changed aside, rows that are no examples."""

import copy
import pickle

import pytest
import torch
from torch.utils.data import Subset

from anechoic.errors import CheckpointError, MismatchError, ReplayError, UnsupportedError
from tests.marks import each_once
from tests.torch.setting import MODES, data, start, train

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


# -- the model -------------------------------------------------------------------------------------


# -- threads, copies, scalers ----------------------------------------------------------------------


@pytest.mark.parametrize(("how", "mode"), each_once([copy.copy, copy.deepcopy, pickle.dumps], MODES))
@pytest.mark.few(2)
def test_runs_are_not_copied(mode, how):
    run, same = start(mode), start(mode)
    for thing in (run.engine, run.optimizer, run.optimizer.ledger):
        with pytest.raises(TypeError, match="cannot be copied or pickled"):
            how(thing)
    assert torch.equal(train(run, 2), train(same, 2))


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


def test_messages_name_folder_method_and_argument(tmp_path):
    run = start()
    with pytest.raises(CheckpointError, match="nowhere.* in a folder that exists"):
        run.engine.save_checkpoint(path=tmp_path / "nowhere" / "c")
    with pytest.raises(TypeError, match="make_private has no argument 'epoch'.*epochs"):
        start(epoch=3)
