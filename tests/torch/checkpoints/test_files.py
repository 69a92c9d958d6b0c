"""What a checkpoint file may hold, where it may lie, and files without keys."""

import contextlib
import sqlite3

import numpy as np
import pytest
import torch

from anechoic.errors import CheckpointError, GuaranteeError, HorizonError, MismatchError, ReplayError
from anechoic.runs import ledger
from anechoic.runs.journal import read_journal
from anechoic.torch import PrivacyEngine, checkpoint
from anechoic.torch.checkpoint import read
from anechoic.torch.run import RunJournal
from tests.marks import every_other
from tests.torch.setting import NOISE_KEY, SAMPLING_KEY, data, mechanism, network, start, step, train, weights


@pytest.fixture(autouse=True)
def other_process(monkeypatch):
    """Forget what was released; called, it does so once more, as a new process would."""
    made = {}
    monkeypatch.setattr(ledger, "_MADE", made)
    return made.clear


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.ckpt"


def the_journal(folder):
    (found,) = folder.glob("*.journal")
    return found


# What it may hold.


def test_schedulers_with_counters_are_kept(path):
    run = start()
    scheduler = torch.optim.lr_scheduler.MultiStepLR(run.optimizer, [3, 3, 5], gamma=0.1)
    for batch in run.loader:
        step(run, batch)
        scheduler.step()
        if run.engine.releases == 3:
            break
    run.engine.save_checkpoint(path=path, checkpoint_dict={"scheduler": scheduler.state_dict()})
    resumed = start(keys=False)
    other = torch.optim.lr_scheduler.MultiStepLR(resumed.optimizer, [3, 3, 5], gamma=0.1)
    other.load_state_dict(resumed.engine.load_checkpoint(path=path)["scheduler"])
    assert other.state_dict() == scheduler.state_dict()
    assert type(other.state_dict()["milestones"]) is type(scheduler.state_dict()["milestones"])
    assert resumed.optimizer.param_groups[0]["lr"] == pytest.approx(0.001)


@pytest.mark.parametrize("rate", [np.float64(0.1), np.float32(0.1)])
@pytest.mark.slow
def test_numpy_numbers_stay_what_they_are(rate, path, other_process):
    def optimizer(parameters):
        return torch.optim.Adam(parameters, lr=rate)

    run = start(optimizer=optimizer)
    train(run, 4)
    extra = {"loss": np.float32(0.1), "count": np.int64(3), "on": np.bool_(True), "nan": np.float16("nan")}
    run.engine.save_checkpoint(path=path, checkpoint_dict=extra)
    end = train(run)
    other_process()
    resumed = start(optimizer=optimizer, keys=False)
    found = resumed.engine.load_checkpoint(path=path)
    assert {name: type(value) for name, value in found.items()} == {n: type(v) for n, v in extra.items()}
    assert found["loss"] == extra["loss"] and np.isnan(found["nan"])
    assert type(resumed.optimizer.param_groups[0]["lr"]) is type(rate)
    assert torch.equal(train(resumed), end)


def test_plain_values_come_back_as_they_were(path):
    run = start()
    values = {"a": [(1, 2.5, "x", None), {"b": np.float32(1.5)}], 3: torch.ones(2), "c": torch.Size([1, 2])}
    run.engine.save_checkpoint(path=path, checkpoint_dict=values)
    found = read(path)
    back, module = found["extra"], found["module"]
    assert back["a"] == values["a"] and type(back["a"][0]) is tuple and type(back["a"][1]["b"]) is np.float32
    assert back["c"] == values["c"] and module._metadata == run.model.state_dict()._metadata


def test_a_folder_is_no_file(tmp_path):
    run = start()
    with pytest.raises(CheckpointError, match=r"must be the name of a file"):
        run.engine.save_checkpoint(path=tmp_path)
    with pytest.raises(CheckpointError, match="cannot be read"):
        run.engine.load_checkpoint(path=tmp_path)
    assert list(tmp_path.iterdir()) == []


# Without keys.


@pytest.mark.slow
def test_a_sealed_checkpoint_holds_no_secret_and_resumes_with_the_keys(path, other_process):
    mech = mechanism("cyclic")
    whole = start(mech=mech, model=network(dropout=0.3))
    train(whole, 6)
    whole.engine.save_checkpoint(path=path, keys=False)
    content = checkpoint.read(path)
    assert content["noise"] is content["noise_key"] is content["sampling_key"] is None
    for key in (NOISE_KEY, SAMPLING_KEY):
        assert key not in path.read_bytes() and key.hex().encode() not in path.read_bytes()
    end = train(whole)
    other_process()
    resumed = start(mech=mech, model=network(dropout=0.3))
    resumed.engine.load_checkpoint(path=path)
    assert resumed.engine.releases == 6
    assert torch.equal(train(resumed), end)


def test_a_sealed_checkpoint_needs_its_keys(path):
    with pytest.raises(ValueError, match="drew its keys itself"):  # nobody could give them again
        start(keys=False).engine.save_checkpoint(path=path, keys=False)
    assert not path.exists()
    run = start()
    train(run, 2)
    run.engine.save_checkpoint(path=path, keys=False)
    with pytest.raises(MismatchError, match="sealed, and noise_key is not the one"):
        start(keys=False).engine.load_checkpoint(path=path)
    other = start()
    other.engine._current().keys = PrivacyEngine(noise_key=NOISE_KEY)._keys.draw()
    with pytest.raises(MismatchError, match="sealed, and sampling_key is not the one"):
        other.engine.load_checkpoint(path=path)


# The journal beside it.


def test_a_run_without_checkpoints_writes_nothing_and_hashes_nothing(tmp_path, monkeypatch):
    from anechoic.runs import Journal

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Journal, "digest", lambda journal, released: pytest.fail("hashed"))
    train(start(), 3)
    assert list(tmp_path.iterdir()) == []


def test_a_journal_of_its_own_place_holds_all_releases(tmp_path, path):
    place = tmp_path / "journals"
    place.mkdir()
    run = start(engine={"journal": place})
    train(run, 5)
    run.engine.save_checkpoint(path=path)
    assert (read_journal(the_journal(place)).first, read_journal(the_journal(place)).end) == (0, 5)
    assert list(tmp_path.glob("*.journal")) == []


@pytest.mark.slow
def test_a_run_under_the_same_keys_is_held_to_the_journal(tmp_path, other_process):
    first = start(engine={"journal": tmp_path / "run.journal"})
    train(first, 5)
    other_process()
    second = start(engine={"journal": tmp_path / "run.journal"})
    train(second, 3)
    other_process()
    third = start(engine={"journal": tmp_path / "run.journal"}, dataset=data(40, seed=1))
    before = [p.detach().clone() for p in third.model.parameters()]
    with pytest.raises(ReplayError, match="release 0 was made before and would now be another one"):
        step(third, next(iter(third.loader)))
    assert all(torch.equal(p, q) for p, q in zip(third.model.parameters(), before, strict=True))


def test_a_refused_release_is_nowhere_to_be_read(path, other_process):
    run = start()
    run.engine.save_checkpoint(path=path)
    train(run, 4)
    other_process()
    resumed = start(keys=False, dataset=data(40, seed=1))
    resumed.engine.load_checkpoint(path=path)
    before = [p.detach().clone() for p in resumed.model.parameters()]
    raw = []
    batch = next(iter(resumed.loader))
    resumed.optimizer.zero_grad()
    resumed.criterion(resumed.forward(batch[0]), batch[1]).backward()
    raw = [None if p.grad is None else p.grad.clone() for p in resumed.model.parameters()]
    with pytest.raises(ReplayError, match="release 0 was made before"):
        resumed.optimizer.step()
    for p, old, grad in zip(resumed.model.parameters(), before, raw, strict=True):
        assert torch.equal(p, old)
        assert (p.grad is None and grad is None) or torch.equal(p.grad, grad)
    with pytest.raises(GuaranteeError):
        resumed.optimizer.step()


@pytest.mark.slow
def test_checkpoints_in_other_folders_find_the_journal(tmp_path, other_process):
    run = start()
    for number in (1, 2):
        (tmp_path / str(number)).mkdir()
        train(run, 3 * number)
        run.engine.save_checkpoint(path=tmp_path / str(number) / "run.ckpt")
    end = train(run)
    run.engine._current().recorder.journal.close()
    for name in (tmp_path / "1").iterdir():  # trainers delete older checkpoints
        name.unlink()
    other_process()
    resumed = start(keys=False)
    resumed.engine.load_checkpoint(path=tmp_path / "2" / "run.ckpt")
    assert torch.equal(train(resumed), end)
    assert read_journal(the_journal(tmp_path / "2")).end == 15


@pytest.mark.slow
def test_a_resumed_run_counts_what_the_journal_knows(tmp_path, other_process):
    run = start()
    train(run, 2)
    run.engine.save_checkpoint(path=tmp_path / "run.ckpt")
    train(run, 11)
    spent = run.engine.get_epsilon(1e-5)
    assert spent == pytest.approx(run.mechanism.epsilon(1e-5, steps=11), rel=1e-9)
    assert spent > run.mechanism.epsilon(1e-5, steps=2)
    run.engine._current().recorder.journal.close()
    other_process()
    resumed = start(keys=False)
    resumed.engine.load_checkpoint(path=tmp_path / "run.ckpt")
    assert (resumed.engine.releases, resumed.engine.get_epsilon(1e-5)) == (2, spent)
    train(resumed, 3)
    assert resumed.engine.get_epsilon(1e-5) == pytest.approx(spent, rel=1e-9)
    train(resumed, 12)
    assert resumed.engine.get_epsilon(1e-5) == pytest.approx(run.mechanism.epsilon(1e-5, steps=12), rel=1e-9)


def test_a_run_under_keys_of_its_own_counts_what_its_journal_knows_from_the_start(tmp_path, other_process):
    run = start(engine={"journal": tmp_path})
    train(run, 6)
    run.engine._current().recorder.journal.close()
    other_process()
    again = start(engine={"journal": tmp_path})
    assert again.engine.get_epsilon(1e-5) == pytest.approx(run.mechanism.epsilon(1e-5, steps=6), rel=1e-9)
    other = start(keys=False, engine={"journal": tmp_path})
    assert other.engine.get_epsilon(1e-5) == 0


@pytest.mark.parametrize("at", every_other([0, 2, 5, 12, 15]))
@pytest.mark.slow
def test_a_loop_over_all_epochs_ends_cleanly_after_resuming(at, tmp_path, other_process, caplog):
    run = start()  # three passes of five steps
    train(run, at)
    run.engine.save_checkpoint(path=tmp_path / "run.ckpt")
    end = train(run)
    with pytest.raises(HorizonError, match="all n=15 releases"):
        iter(run.loader)
    run.engine._current().recorder.journal.close()
    other_process()
    resumed = start(keys=False)
    resumed.engine.load_checkpoint(path=tmp_path / "run.ckpt")
    batches = []
    for _ in range(3):
        batches.append(0)
        for batch in resumed.loader:
            step(resumed, batch)
            batches[-1] += 1
    complete, rest = divmod(at, 5)
    expected = [5 - rest] * (complete < 3) + [5] * (2 - complete) + [0] * complete
    assert batches == expected[:3] and torch.equal(weights(resumed.model), end)
    assert caplog.text.count("this pass of the loader has no batch") == complete
    with pytest.raises(HorizonError, match="all n=15 releases"):
        iter(resumed.loader)


def test_a_checkpoint_without_its_journal_leaves_the_run_as_it_was(path):
    run = start()
    train(run, 2)
    run.engine.save_checkpoint(path=path)
    run.engine._current().recorder.journal.close()
    the_journal(path.parent).unlink()
    other = start(keys=False)
    before = [p.detach().clone() for p in other.model.parameters()]
    with pytest.raises(CheckpointError, match="is missing"):
        other.engine.load_checkpoint(path=path)
    assert other.engine.releases == 0
    assert all(torch.equal(p, q) for p, q in zip(other.model.parameters(), before, strict=True))


def test_the_journal_records_from_the_first_checkpoint_on_and_shows_no_key(path):
    run = start()
    train(run, 2)
    run.engine.save_checkpoint(path=path)
    train(run, 4)
    record = read_journal(the_journal(path.parent))
    assert (record.first, record.end) == (2, 4)
    content = b"".join(file.read_bytes() for file in path.parent.glob("*.journal*"))
    for key in (NOISE_KEY, SAMPLING_KEY):
        assert key not in content and key.hex().encode() not in content


@pytest.mark.parametrize("releases", [0, 2])
def test_weights_that_something_else_changed_are_not_saved(releases, path):
    run = start()
    train(run, releases)
    with torch.no_grad():
        run.model[0].weight.add_(1.0)
    if not releases:  # weights may be loaded until the first batch
        run.engine.save_checkpoint(path=path)
        return
    with pytest.raises(GuaranteeError, match="by something else than optimizer.step"):
        run.engine.save_checkpoint(path=path)
    assert not path.exists()


def test_a_journal_without_tables_has_no_releases(tmp_path):
    """What a process leaves that was killed while it made one."""
    place = tmp_path / "run.journal"
    with contextlib.closing(sqlite3.connect(place)) as database:
        database.execute("PRAGMA journal_mode=WAL")
    assert place.stat().st_size > 0
    assert RunJournal(None, path=place).made(bytes(32)) == 0
