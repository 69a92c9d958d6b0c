"""PrivateTrainer with the real transformers: the run of a bare loop, whatever the trainer does around it."""

import json
import math
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("transformers", reason="make test-all installs it")

from transformers import get_scheduler

from anechoic.errors import UnsupportedError
from anechoic.trainers import Privacy
from anechoic.trainers.adapter import check_settings
from anechoic.trainers.transformers import PrivateTrainer
from anechoic.trainers.transformers_settings import REFUSED
from tests.floats import same_bits
from tests.trainers.setting import KEYS, Sentences, bare, flat
from tests.trainers.transformers.setting import ASKED, gpt2, start

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]
#: All that the log of a training run may hold.
SAID = {"epsilon", "noise_to_signal", "learning_rate", "epoch", "step", "train_runtime"}
SAID |= {"train_samples_per_second", "train_steps_per_second"}


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def of_adam(model, epochs, batch, **options):
    """The bare loop with the Trainer's default optimizer and schedule."""
    decayed = [p for name, p in model.named_parameters() if p.dim() > 1]
    rest = [p for p in model.parameters() if p.dim() == 1]
    groups = [{"params": decayed, "weight_decay": 0.0}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, fused=False)
    steps = epochs * 64 // batch
    probe = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    scheduler, rates = get_scheduler("linear", probe, num_warmup_steps=0, num_training_steps=steps), []
    for _ in range(steps):
        rates.append(float(probe.param_groups[0]["lr"]))
        probe.step()
        scheduler.step()
    return bare(model, optimizer, batch=batch, epochs=epochs, rates=rates, **options)


def test_the_trainer_makes_the_run_of_the_bare_loop(tmp_path):
    trainer = start(tmp_path / "out", optim="adamw_torch", save_strategy="no")
    trainer.train()
    other = gpt2()
    loop = of_adam(other, 3, 16, poisson_sampling=False)
    assert trainer.engine.mechanism == loop.engine.mechanism
    assert same_bits(flat(trainer.model), flat(other))


def test_accumulation_is_one_release_a_logical_batch(tmp_path):
    whole = start(tmp_path / "whole", save_strategy="no")
    whole.train()
    parts = start(
        tmp_path / "parts", save_strategy="no", per_device_train_batch_size=4, gradient_accumulation_steps=4
    )
    parts.train()
    assert parts.engine.releases == whole.engine.releases == parts.state.global_step == 12
    assert parts.engine.mechanism == whole.engine.mechanism
    torch.testing.assert_close(flat(parts.model), flat(whole.model), atol=2e-5, rtol=1e-4)


def test_evaluation_and_prediction_change_nothing(tmp_path):
    plain = start(tmp_path / "plain", save_strategy="no")
    plain.train()
    trainer = start(tmp_path / "out", save_strategy="no", eval_strategy="steps", eval_steps=1)
    trainer.evaluate()
    trainer.train()
    trained = flat(trainer.model)
    assert trainer.predict(Sentences(6)).predictions.shape[0] == 6
    assert same_bits(trained, flat(plain.model))
    assert same_bits(flat(trainer.model), trained)


def test_nothing_is_logged_that_was_not_noised(tmp_path):
    """Two runs under one key whose data differ: what does not follow from a release is the same in both."""
    asked = {**ASKED, "poisson_sampling": True, "mechanism": "identity"}
    logs, states = [], []
    for place, changed in enumerate(({}, {i: (i + 500, 4) for i in range(32)})):
        trainer = start(
            tmp_path / str(place),
            privacy=Privacy(**asked, **KEYS),
            dataset=Sentences(changed=changed),
            learning_rate=1e-9,
        )
        output = trainer.train()
        assert math.isnan(output.training_loss)
        assert set(output.metrics) <= SAID
        logs.append(trainer.state.log_history)
        states.append(
            json.loads((tmp_path / str(place) / "checkpoint-10" / "trainer_state.json").read_text())
        )
    for one, other in zip(*logs, strict=True):
        assert set(one) == set(other) <= SAID
        for name in ("epsilon", "learning_rate", "epoch", "step"):
            assert one.get(name) == other.get(name)
    assert states[0]["total_flos"] == states[1]["total_flos"] == 0
    assert {k: v for k, v in states[0].items() if k != "log_history"} == {
        k: v for k, v in states[1].items() if k != "log_history"
    }


class Telling(PrivateTrainer):
    """Logs what it sees of private rows, wherever it can."""

    def compute_loss(self, model, inputs, return_outputs=False, **_):
        found = super().compute_loss(model, inputs, return_outputs=True)
        if model.training:
            self.log({"from_the_loss": 1.0, "eval_from_the_loss": 1.0})
        return found if return_outputs else found[0]

    def training_step(self, model, inputs, num_items_in_batch=None):
        self.log({"from_the_step": float(inputs.first["input_ids"].float().mean()), "loss": 2.0})
        return super().training_step(model, inputs, num_items_in_batch)

    def log(self, logs, *arguments, **keywords):
        super().log({**logs, "from_the_log": 3.0}, *arguments, **keywords)


def test_what_code_of_the_script_logs_while_training_is_left_out(tmp_path, caplog):
    trainer = start(tmp_path / "out", kind=Telling, eval_strategy="steps", eval_steps=5)
    trainer.train()
    during = [entry for entry in trainer.state.log_history if "eval_loss" not in entry]
    assert during and all(set(entry) <= SAID for entry in during)
    assert sum("from_the_step" in record.message for record in caplog.records) == 1
    state = (tmp_path / "out" / "checkpoint-10" / "trainer_state.json").read_text()
    assert "from_the_step" not in state and "from_the_loss" not in state
    evaluated = [entry for entry in trainer.state.log_history if "eval_loss" in entry]
    assert evaluated and all("from_the_log" in entry for entry in evaluated)


def test_it_stops_at_the_budget(tmp_path):
    privacy = Privacy(**{**ASKED, "mechanism": "identity"}, stop_at_epsilon=6.5)
    trainer = start(tmp_path / "out", privacy=privacy)
    trainer.train()
    last = trainer.state.global_step
    assert 0 < last < 12
    assert trainer.engine.get_epsilon(1e-3) <= 6.5
    assert (tmp_path / "out" / f"checkpoint-{last}").is_dir()


def test_keys_are_beside_the_folder_and_nothing_in_it_holds_them(tmp_path):
    trainer = start(tmp_path / "out")
    trainer.train()
    keys = [KEYS["noise_key"], KEYS["sampling_key"]]
    files = [p for p in (tmp_path / "out").rglob("*") if p.is_file()]
    assert {"model.safetensors", "optimizer.pt", "privacy.txt"} <= {p.name for p in files}
    for path in files:
        held = path.read_bytes()
        assert not any(key in held or key.hex().encode() in held for key in keys), path
    private = tmp_path / "out.private"
    assert private.stat().st_mode & 0o077 == 0
    assert {p.name for p in private.glob("*.ckpt")} == {f"checkpoint-{k}.ckpt" for k in (5, 10, 12)}
    said = (tmp_path / "out" / "checkpoint-5" / "privacy.txt").read_text(encoding="utf-8")
    assert "(8.000, 0.001)-differential privacy of all 12 releases" in said
    assert "Releases so far: 5 of 12" in said


def test_twins_go_with_the_checkpoints_that_the_trainer_deletes(tmp_path):
    start(tmp_path / "out", save_total_limit=1, save_steps=2).train()
    kept = {p.name for p in (tmp_path / "out").glob("checkpoint-*")}
    twins = {p.name.removesuffix(".ckpt") for p in (tmp_path / "out.private").glob("*.ckpt")}
    assert len(kept) == 1
    assert kept <= twins
    assert len(twins) <= 2  # that of the checkpoint which went last is deleted with the next


def test_what_was_saved_is_read_back_by_transformers(tmp_path):
    trainer = start(tmp_path / "out", save_strategy="no")
    trainer.train()
    trainer.save_model()
    again = type(trainer.model).from_pretrained(tmp_path / "out")
    assert same_bits(flat(again), flat(trainer.model))
    saved = torch.load(tmp_path / "out" / "training_args.bin", weights_only=False)
    assert saved.max_grad_norm == 1.0  # the user's, not those of the loop


VALUES = {
    "train_sampling_strategy": "group_by_length",
    "include_num_input_tokens_seen": "all",
    "world_size": 2,
    "n_gpu": 2,
}


@pytest.mark.parametrize("name", [name for name, _, _ in REFUSED])
def test_what_cannot_be_private_is_refused_by_name(name):
    args = SimpleNamespace(**{name: VALUES.get(name, True)})
    with pytest.raises(UnsupportedError, match=f"{name}=.* is refused: "):
        check_settings(args, REFUSED)


def test_a_second_train_is_refused(tmp_path):
    trainer = start(tmp_path / "out", save_strategy="no")
    trainer.train()
    with pytest.raises(UnsupportedError, match=r"train\(\) was called twice.*charge="):
        trainer.train()


class Keeps(PrivateTrainer):
    """A number of one row, on the trainer, that counts for the next."""

    def compute_loss(self, model, inputs, return_outputs=False, **_):
        loss = model(**inputs).loss
        factor, self.factor = getattr(self, "factor", 1.0), float(loss.detach()) * 50
        return loss * factor


def test_what_a_loss_keeps_on_the_trainer_reaches_no_other_row(tmp_path):
    found = []
    for kind in (Keeps, PrivateTrainer):
        trainer = start(tmp_path / kind.__name__, kind=kind, save_strategy="no")
        trainer.train()
        found.append(flat(trainer.model))
    torch.testing.assert_close(*found, atol=1e-6, rtol=1e-5)


def test_noise_on_embeddings_is_that_of_single_rows(tmp_path):
    """NEFTune, whose hook comes after the run has begun: the same again, and not that of a run without it."""
    found = []
    for alpha in (5.0, 5.0, None):
        trainer = start(tmp_path / str(len(found)), save_strategy="no", neftune_noise_alpha=alpha)
        trainer.train()
        assert trainer.engine.releases == 12
        found.append(flat(trainer.model))
    assert same_bits(found[0], found[1]) and not torch.equal(found[0], found[2])
