"""A training run in the budget book: refused before it begins, booked once, also where it is resumed."""

import pytest
import torch

from anechoic.budget import BudgetBook
from anechoic.errors import GuaranteeError, ReplayError
from tests.torch.setting import mechanism, start, step, train


@pytest.fixture
def book(tmp_path):
    one = mechanism()
    made = BudgetBook(tmp_path / "b.db", "flights")
    made.grant(one.epsilon(1e-6), 1e-6)
    return made


def test_a_run_is_booked_by_its_first_batch_and_a_second_one_refused(book):
    run = start(engine={"book": book}, keys=False)
    assert not book.account().live
    step(run, next(iter(run.loader)))
    assert [one.status for one in book.account().live] == ["spent"]
    assert book.account().live[0].run == run.engine._run.identity
    with pytest.raises(GuaranteeError, match="does not cover"):
        start(engine={"book": book}, keys=False, mech=mechanism(noise_std=0.6))


def test_two_runs_that_began_to_look_cannot_both_step(book):
    first, second = (start(engine={"book": book}, keys=False) for _ in range(2))
    next(iter(first.loader))
    with pytest.raises(GuaranteeError, match="does not cover"):
        next(iter(second.loader))
    assert second.engine.releases == 0


def test_a_resumed_run_is_not_booked_again(book, tmp_path, other_process):
    run = start(engine={"book": book}, keys=False)
    train(run, 4)
    run.engine.save_checkpoint(path=tmp_path / "checkpoint")
    other_process()  # as in another process
    run.engine._run.recorder.journal.close()
    again = start(engine={"book": book}, keys=False)
    again.engine.load_checkpoint(path=tmp_path / "checkpoint")
    train(again)
    assert again.engine.releases == 15 and len(book.account().live) == 1


def test_a_run_that_began_without_the_book_is_charged_when_it_goes_on(book, tmp_path, other_process):
    run = start(keys=False)
    train(run, 4)
    run.engine.save_checkpoint(path=tmp_path / "checkpoint")
    other_process()
    run.engine._run.recorder.journal.close()
    again = start(engine={"book": book}, keys=False)
    again.engine.load_checkpoint(path=tmp_path / "checkpoint")
    assert [one.status for one in book.account().live] == ["spent"]


def begun_again(book, other_process, journal=None, rate=0.1):
    """The script of a run with fixed keys, from its first release on, as in another process."""
    other_process()
    return start(
        engine={"book": book, "journal": journal},
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=rate),
    )


def test_a_script_with_fixed_keys_that_runs_again_is_refused(book, other_process, tmp_path):
    """The attack: the same keys with another learning rate, whose noise is the same and cancels."""
    train(begun_again(book, other_process), 4)
    for journal in (None, tmp_path / "new", tmp_path / "new"):
        again = begun_again(book, other_process, journal, rate=0.2)
        with pytest.raises(GuaranteeError, match="one run was charged"):
            next(iter(again.loader))
        assert again.engine.releases == 0
    run = begun_again(book, other_process)
    with pytest.raises(GuaranteeError, match="one run was charged"):
        run.engine.save_checkpoint(path=tmp_path / "checkpoint")
        run.engine._run.recorder.journal.close()
        begun_again(book, other_process).engine.load_checkpoint(path=tmp_path / "checkpoint")


def test_with_a_journal_it_goes_on_and_nothing_else_is_released(book, other_process, tmp_path):
    run = begun_again(book, other_process, tmp_path / "journal")
    train(run, 4)
    run.engine._run.recorder.journal.close()
    again = begun_again(book, other_process, tmp_path / "journal")
    train(again, 6)
    again.engine._run.recorder.journal.close()
    other = begun_again(book, other_process, tmp_path / "journal", rate=0.2)
    with pytest.raises(ReplayError):
        train(other, 4)
    assert [one.status for one in book.account().live] == ["spent"]


def test_a_journal_put_back_after_the_end_is_refused_on_any_word(book, other_process, tmp_path):
    """The attack: checkpoint and journal of an earlier step, and other data under the same rows of noise."""
    run, folder = start(engine={"book": book}, keys=False), tmp_path / "run"
    folder.mkdir()
    train(run, 4)
    run.engine.save_checkpoint(path=folder / "checkpoint")
    journal = run.engine._run.recorder.journal
    files = {path: path.read_bytes() for path in folder.iterdir() if "checkpoint" in path.name}
    journal.close()
    files[journal.path] = journal.path.read_bytes()
    other_process()
    again = start(engine={"book": book}, keys=False)
    again.engine.load_checkpoint(path=folder / "checkpoint")
    train(again, 8)
    again.engine._run.recorder.journal.close()
    for path, content in files.items():
        path.write_bytes(content)
    for adopt in (False, True):
        other_process()
        with pytest.raises(ReplayError, match="not its newest state: .*fresh keys"):
            start(engine={"book": book}, keys=False).engine.load_checkpoint(
                path=folder / "checkpoint", adopt_journal=adopt
            )
    assert [one.status for one in book.account().live] == ["spent"]
