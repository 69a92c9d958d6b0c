"""What a checkpoint file may hold, where it may lie, and files without keys."""

import contextlib
import sqlite3

import numpy as np
import pytest
import torch

from anechoic.errors import CheckpointError, GuaranteeError, HorizonError, MismatchError, ReplayError
from anechoic.runs.journal import read_journal
from anechoic.torch import PrivacyEngine, read_mechanism
from anechoic.torch.checkpoint import read
from anechoic.torch.run import RunJournal
from tests.marks import every_other
from tests.torch.setting import NOISE_KEY, SAMPLING_KEY, data, start, step, train, weights


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.ckpt"


def the_journal(folder):
    (found,) = folder.glob("*.journal")
    return found


# What it may hold.


def test_what_else_was_saved_comes_back_as_it_was(path):
    """Numbers of NumPy, tuples and tensors too, and a schedule whose milestones are counted."""

    def begun(**options):
        run = start(optimizer=lambda p: torch.optim.Adam(p, lr=np.float64(0.1)), **options)
        return run, torch.optim.lr_scheduler.MultiStepLR(run.optimizer, [3, 3, 5], gamma=0.1)

    run, scheduler = begun()
    for _, batch in zip(range(3), run.loader, strict=False):
        step(run, batch)
        scheduler.step()
    numbers = {"loss": np.float32(0.1), "count": np.int64(3), "on": np.bool_(True), "nan": np.float16("nan")}
    plain = {"a": [(1, 2.5, "x", None), {"b": np.float32(1.5)}], 3: torch.ones(2), "c": torch.Size([1, 2])}
    extra = {**numbers, **plain, "scheduler": scheduler.state_dict()}
    run.engine.save_checkpoint(path=path, checkpoint_dict=extra)
    assert path.stat().st_mode & 0o077 == 0  # only the owner reads it
    assert read_mechanism(path) == run.mechanism
    resumed, other = begun(keys=False)
    found = resumed.engine.load_checkpoint(path=path)
    assert {name: type(value) for name, value in found.items()} == {n: type(v) for n, v in extra.items()}
    assert found["loss"] == extra["loss"] and np.isnan(found["nan"])
    assert found["a"] == plain["a"] and type(found["a"][0]) is tuple
    assert torch.equal(found[3], plain[3]) and found["c"] == plain["c"]
    other.load_state_dict(found["scheduler"])
    assert other.state_dict() == scheduler.state_dict()
    assert type(other.state_dict()["milestones"]) is type(scheduler.state_dict()["milestones"])
    assert type(resumed.optimizer.param_groups[0]["lr"]) is type(run.optimizer.param_groups[0]["lr"])
    assert resumed.optimizer.param_groups[0]["lr"] == pytest.approx(0.001)
    assert read(path)["module"]._metadata == run.model.state_dict()._metadata


def test_a_folder_is_no_file(tmp_path):
    run = start()
    with pytest.raises(CheckpointError, match=r"must be the name of a file"):
        run.engine.save_checkpoint(path=tmp_path)
    with pytest.raises(CheckpointError, match="cannot be read"):
        run.engine.load_checkpoint(path=tmp_path)
    assert list(tmp_path.iterdir()) == []


# Without keys.


def test_a_sealed_checkpoint_holds_no_key_and_needs_both(path):
    with pytest.raises(ValueError, match="drew its keys itself"):  # nobody could give them again
        start(keys=False).engine.save_checkpoint(path=path, keys=False)
    assert not path.exists()
    run = start()
    train(run, 2)
    run.engine.save_checkpoint(path=path, keys=False)
    content = read(path)
    assert content["noise"] is content["noise_key"] is content["sampling_key"] is None
    for key in (NOISE_KEY, SAMPLING_KEY):
        assert key not in path.read_bytes() and key.hex().encode() not in path.read_bytes()
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
    assert RunJournal(None, path=place).recorded(bytes(32)) == 0
