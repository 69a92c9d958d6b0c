"""How many releases a run of PrivateTrainer has: planned, made, and what is said where they differ."""

import pytest

pytest.importorskip("transformers", reason="make test-all installs it")

from transformers import TrainerCallback

from anechoic.errors import MismatchError
from anechoic.trainers import Privacy
from tests.trainers.setting import KEYS
from tests.trainers.transformers.setting import ASKED, start

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


OF_USERS = {**ASKED, "unit": "user", "unit_ids": [f"user{i % 20}" for i in range(64)]}


@pytest.mark.parametrize("fixed", [True, False])
@pytest.mark.parametrize(("epochs", "steps"), [(2, 6), (1.5, 5)])
def test_an_epoch_is_a_pass_over_the_users(epochs, steps, fixed, tmp_path):
    privacy = Privacy(**{**OF_USERS, "poisson_sampling": not fixed}, **KEYS)
    trainer = start(
        tmp_path / "out", privacy=privacy, save_strategy="no", num_train_epochs=epochs,
        per_device_train_batch_size=4, gradient_accumulation_steps=2,
    )  # fmt: skip
    trainer.train()
    assert trainer.engine.mechanism.steps == steps == trainer.engine.releases == trainer.state.global_step


def test_a_run_may_stop_early(tmp_path):
    class Stops(TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            control.should_training_stop = state.global_step == 3

    stopped = start(tmp_path / "a", save_strategy="no", given={"callbacks": [Stops()]})
    stopped.train()
    limited = start(tmp_path / "c", save_strategy="no", max_steps=2)
    limited.train()
    assert stopped.engine.releases == 3
    assert limited.engine.releases == limited.engine.mechanism.steps == 2


def test_going_on_for_more_epochs_is_refused_in_words_of_the_trainer(tmp_path):
    start(tmp_path / "out", num_train_epochs=2).train()
    again = start(tmp_path / "out", keys=False)
    with pytest.raises(
        MismatchError, match=r"checkpoint-8 has 8 releases.*would make 12: .*charge="
    ) as found:
        again.train(resume_from_checkpoint=True)
    assert "steps=" not in str(found.value)
