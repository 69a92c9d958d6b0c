"""What every trainer shares, driven by a bare loop: nothing of a framework is needed."""

import re

import pytest
import torch
from torch.utils.data import DataLoader

from anechoic.errors import CheckpointError, DesynchronizedError, MismatchError
from anechoic.trainers import Privacy
from anechoic.trainers.checkpoint_files import private_folder, twin
from anechoic.trainers.run import RowLoss, TrainerRun
from tests.floats import same_bits
from tests.trainers.setting import KEYS, Sentences, as_in_another_process, bare, flat, words

ASKED = {"target_epsilon": 8.0, "target_delta": 1e-3, "max_grad_norm": 1.0}
FIXED = {"mechanism": "identity", "poisson_sampling": False}


def of_batch(model, batch):
    return model(**batch)["loss"]


def start(folder, *, privacy=None, loss=of_batch, at_once=16, steps=8, resume=None, dataset=None, rate=0.5):
    as_in_another_process()
    model = words()
    run = TrainerRun(
        privacy or Privacy(**ASKED, **KEYS, poisson_sampling=False, exact_sums=False),
        module=RowLoss(model, loss),
        optimizer=torch.optim.SGD(model.parameters(), lr=rate),
        loader=DataLoader(dataset or Sentences(), batch_size=16, shuffle=True),
        steps=steps,
        scheduler=None,
        at_once=at_once,
        folder=str(folder / "out"),
        resume=resume,
    )
    return run, model


def train(run, most=99):
    """Until training is over, or `most` releases are made."""
    while run.engine.releases < min(most, run.engine.mechanism.steps):
        for batch in run.batches:
            for part in run.parts(batch):
                run.module(part).backward()
            run.optimizer.step()
            if not run.released() or run.engine.releases == most:
                return


def test_a_run_is_that_of_the_bare_loop(tmp_path):
    run, model = start(tmp_path)
    train(run)
    other = words()
    bare(
        other,
        torch.optim.SGD(other.parameters(), lr=0.5),
        batch=16,
        epochs=2,
        poisson_sampling=False,
        exact_sums=False,
    )
    assert same_bits(flat(model), flat(other))


def test_parts_of_a_batch_make_one_release_of_all_its_rows(tmp_path):
    whole, model = start(tmp_path)
    train(whole)
    run, other = start(tmp_path / "parts", at_once=3)
    train(run)
    assert run.engine.releases == 8
    torch.testing.assert_close(flat(other), flat(model))


def test_a_batch_whose_parts_are_not_all_taken_is_not_released(tmp_path):
    run, model = start(tmp_path, at_once=3)
    before = flat(model)
    batch = next(iter(run.batches))
    run.module(next(iter(run.parts(batch)))).backward()
    run.optimizer.step()
    assert run.engine.releases == 0
    assert same_bits(flat(model), before)
    with pytest.raises(DesynchronizedError):
        next(iter(run.batches))


@pytest.mark.parametrize(
    "loss",
    [
        lambda model, batch: model(**batch)["loss"],
        lambda model, batch: (out := model(**batch)["loss"]) / out.detach().sum() * 1e3,
        lambda model, batch: 1e3 * model(**batch)["logits"].mean(0).square().sum(),
    ],
    ids=["mean", "divided by the batch", "centred on the batch"],
)
def test_no_loss_moves_a_release_by_more_than_two_clip_norms(loss, tmp_path):
    """The loss is of one row, whatever it does with 'the batch'."""
    released = []
    for place, changed in enumerate(({}, {7: (12345, 9)})):
        run, _ = start(tmp_path / str(place), loss=loss, dataset=Sentences(changed=changed))
        sums = []
        for batch in run.batches:
            for part in run.parts(batch):
                run.module(part).backward()
            run.optimizer.step()
            sums.append(torch.cat([p.grad.reshape(-1) for p in run.optimizer.params]) * 16)
            break
        released += sums
    # without knowing in which batch the record is: it is in the first one or not
    assert float((released[0] - released[1]).norm()) <= 2.0 + 1e-4


def test_a_run_goes_on_from_its_twin_bit_for_bit(tmp_path):
    run, model = start(tmp_path)
    checkpoint = tmp_path / "out" / "checkpoint-3"
    checkpoint.mkdir(parents=True)
    train(run, 3)
    run.save(str(checkpoint), note="three")
    train(run)
    assert twin(checkpoint).parent == private_folder(tmp_path / "out") == tmp_path / "out.private"
    assert not list(checkpoint.iterdir())  # keys are nowhere in the trainer's own folder
    privacy = Privacy(**ASKED, poisson_sampling=False, exact_sums=False)
    resumed, other = start(tmp_path, privacy=privacy, resume=str(checkpoint))
    assert resumed.load() == {"note": "three"}
    assert resumed.engine.releases == 3
    train(resumed)
    assert same_bits(flat(model), flat(other))


def test_a_checkpoint_without_keys_is_refused(tmp_path):
    checkpoint = tmp_path / "out" / "checkpoint-3"
    checkpoint.mkdir(parents=True)
    with pytest.raises(CheckpointError, match=r"checkpoint-3 has no keys.*charge="):
        start(tmp_path, resume=str(checkpoint))


def test_a_journal_in_another_folder_is_named(tmp_path):
    run, model = start(tmp_path / "a")
    checkpoint = tmp_path / "a" / "out" / "checkpoint-3"
    checkpoint.mkdir(parents=True)
    train(run, 3)
    run.save(str(checkpoint))
    train(run)
    (journal,) = (tmp_path / "a" / "out.private").glob("*.journal")
    again, _ = start(tmp_path / "b", resume=str(checkpoint))
    with pytest.raises(CheckpointError, match=rf"b/out.private.*written with {journal}.*default_root_dir"):
        again.load()
    run.engine._current().recorder.journal.close()
    journal.rename(tmp_path / "b" / "out.private" / journal.name)  # as the message says
    again, other = start(
        tmp_path / "b",
        privacy=Privacy(**ASKED, **KEYS, poisson_sampling=False, exact_sums=False, adopt_journal=True),
        resume=str(checkpoint),
    )
    again.load()
    train(again)
    assert same_bits(flat(model), flat(other))


def test_training_stops_before_the_budget_is_passed(tmp_path):
    run, _ = start(tmp_path, privacy=Privacy(**ASKED, **FIXED, stop_at_epsilon=6.0), steps=12)
    assert 0 < run.last < 12
    train(run)
    assert run.engine.releases == run.last
    assert run.logs()["epsilon"] <= 6.0 < run.engine.mechanism.epsilon(1e-3, steps=run.last + 1)


def test_a_budget_that_no_step_keeps_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"stop_at_epsilon=0.01 is less than what the first release costs"):
        start(tmp_path, privacy=Privacy(**ASKED, **FIXED, stop_at_epsilon=0.01))


def test_what_was_released_before_is_counted(tmp_path):
    run, _ = start(tmp_path)
    train(run)
    other, _ = start(tmp_path / "b", privacy=Privacy(**ASKED, **FIXED, charge=run.engine.mechanism))
    assert other.engine.get_epsilon(1e-3) == pytest.approx(run.engine.get_epsilon(1e-3))
    assert "of 8, epsilon" in other.statement and re.search(r"Model: +\w+, \d+ parameters", other.statement)


def test_noise_to_signal_is_that_of_the_sums(tmp_path):
    """Against the gradients themselves, which a run without noise to speak of shows."""
    asked = Privacy(target_epsilon=60.0, target_delta=1e-3, max_grad_norm=1.0, poisson_sampling=False)
    loud, _ = start(tmp_path, privacy=asked, rate=1e-12)  # weights stay, and so do gradients
    train(loud)
    asked = Privacy(target_epsilon=1e5, target_delta=1e-3, max_grad_norm=1.0, poisson_sampling=False)
    quiet, _ = start(tmp_path / "quiet", privacy=asked, rate=1e-12)
    total = 0.0
    while quiet.engine.releases < 8:
        for batch in quiet.batches:
            for part in quiet.parts(batch):
                quiet.module(part).backward()
            quiet.optimizer.step()
            total += sum(float(p.grad.double().square().sum()) for p in quiet.optimizer.params)
    noise = loud._variances.sum() * flat(loud.module).numel()
    assert loud.logs()["noise_to_signal"] == pytest.approx((noise / total) ** 0.5, rel=0.25)


def test_a_mechanism_for_another_number_of_releases_is_refused_in_words_of_a_trainer(tmp_path):
    run, _ = start(tmp_path)
    privacy = Privacy(**ASKED, mechanism=run.engine.mechanism)
    with pytest.raises(MismatchError, match=r"mechanism in Privacy has 8 releases.*would make 12: .*epochs"):
        start(tmp_path / "b", privacy=privacy, steps=12)
