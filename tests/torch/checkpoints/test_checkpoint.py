"""Checkpoints: a resumed run is the uninterrupted one bit for bit, or it is refused and nothing changes."""

import hashlib
import io
import os
import pickle
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from anechoic.errors import CheckpointError, DesynchronizedError, MismatchError, ReplayError
from anechoic.mechanism.mechanism import Mechanism
from anechoic.noise.gaussian import AES, CHACHA
from anechoic.noise.torch_arrays import RowArrays
from anechoic.runs import atomic_files
from anechoic.sampling import FixedOrder, FixedSize
from anechoic.strategies import BLT, BandedToeplitz, Identity
from anechoic.torch import CorrectedAdam, checkpoint, noise_adder, read_mechanism
from anechoic.torch.checkpoint import check_place, environment
from tests.marks import mostly_slow
from tests.torch.setting import MODES, data, managed, mechanism, network, start, step, train, weights


def adam(parameters):
    return torch.optim.Adam(parameters, lr=0.01)


def momentum(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def lively(mode="rows", *, keys=True, mech=None, optimizer=adam, workers=None, **options):
    """A run with dropout and augmentations, which draw from every generator."""
    mech = mech or mechanism("cyclic")
    return start(
        mode, mech=mech, model=network(dropout=0.3), dataset=data(mech.sampling.examples, augmented=True),
        optimizer=optimizer, keys=keys, loader=workers or {}, **options,
    )  # fmt: skip


def scrambled():
    """Leave all generators in a state that no checkpoint has."""
    import random

    torch.manual_seed(99)
    np.random.seed(99)  # noqa: NPY002
    random.seed(99)


def of(strategy):
    return {"mech": Mechanism(strategy, FixedOrder(40, 8, steps=15), 0.5)}


CASES = {  # after how many releases a run is saved, and how it was made
    "in an epoch": (3, {}),
    "before the first": (0, {}),
    "between epochs": (5, {}),
    "at the end": (15, {}),
    "ghost": (8, {"mode": "ghost", "optimizer": momentum}),
    "workers that read ahead": (7, {"workers": {"num_workers": 2}}),
    "workers that stay": (7, {"workers": {"num_workers": 2, "persistent_workers": True}}),
    "without replacement": (6, {"mech": Mechanism(Identity(15), FixedSize(40, 8, 15), 0.5)}),
    "banded": (6, of(BandedToeplitz(15, [1.0, 0.5, 0.2]))),
    "blt": (6, of(BLT(15, scale=[0.2, 0.1], decay=[0.9, 0.5]))),
}


@pytest.mark.parametrize("name", mostly_slow(CASES, quick=("in an epoch", "without replacement")))
def test_a_resumed_run_is_bit_identical(name, tmp_path, other_process):
    (at, options), path = CASES[name], tmp_path / "run.ckpt"
    scrambled()
    torch.manual_seed(5)
    whole = lively(**options)
    train(whole, at)
    whole.engine.save_checkpoint(path=path, module=whole.module, optimizer=whole.optimizer)
    end = train(whole)
    scrambled()
    other_process()
    resumed = lively(keys=False, **{**options, "workers": None})
    assert resumed.engine.load_checkpoint(path=path, module=resumed.model) == {}  # or the wrapped one
    assert resumed.engine.releases == at
    assert torch.equal(train(resumed), end)
    assert resumed.engine.get_epsilon(1e-5) == pytest.approx(whole.engine.get_epsilon(1e-5), rel=1e-9)


@pytest.mark.slow
def test_micro_batches_resume_with_the_same_size(tmp_path, other_process):
    path = tmp_path / "run.ckpt"

    def stepped(run, size, stop):
        with managed(run, size) as batches:
            while run.engine.releases < stop:
                for batch in batches:
                    step(run, batch)
                    if run.engine.releases == stop:
                        break
        return weights(run.model)

    torch.manual_seed(5)
    whole = lively()
    stepped(whole, 3, 6)
    whole.engine.save_checkpoint(path=path)
    with pytest.raises(ReplayError, match="max_physical_batch_size=None was 3"):
        iter(whole.loader)
    end = stepped(whole, 3, 15)
    other_process()
    resumed = lively(keys=False)
    resumed.engine.load_checkpoint(path=path)
    with pytest.raises(ReplayError, match="max_physical_batch_size=4 was 3"):
        stepped(resumed, 4, 15)
    assert torch.equal(stepped(resumed, 3, 15), end)


def with_other_digits(mech):
    """The plan as another processor might make it."""
    strategy = BandedToeplitz(mech.steps, mech.strategy.band * np.array([1.0, 1.00001]))
    return Mechanism(strategy, mech.sampling, mech.noise_std, mech.clip_norm)


@pytest.mark.slow
def test_a_plan_made_again_with_other_digits_goes_on_with_the_mechanism_of_the_run(tmp_path, other_process):
    path, optimizer = tmp_path / "run.ckpt", lambda parameters: CorrectedAdam(parameters, lr=0.01)
    whole = start(optimizer=optimizer)
    train(whole, 4)
    whole.engine.save_checkpoint(path=path)
    end = train(whole)
    other_process()
    resumed = start(mech=with_other_digits(mechanism()), optimizer=optimizer, keys=False)
    assert resumed.engine.mechanism != whole.mechanism
    resumed.engine.load_checkpoint(path=path)
    assert resumed.engine.mechanism == whole.mechanism
    assert torch.equal(train(resumed), end)
    assert resumed.engine.get_epsilon(1e-6) == pytest.approx(whole.engine.get_epsilon(1e-6))
    stamp = resumed.optimizer.state_dict()["anechoic"]
    assert stamp["fingerprint"] == whole.mechanism.fingerprint
    resumed.engine.save_checkpoint(path=path)
    assert read_mechanism(path) == whole.mechanism


# Between two releases.


def test_nothing_is_saved_amid_a_step(tmp_path):
    """A hook before the update has the release, and weights that it is not in."""
    run = start()
    run.optimizer.original_optimizer.register_step_pre_hook(
        lambda *_: run.engine.save_checkpoint(path=tmp_path / "run.ckpt")
    )
    with pytest.raises(DesynchronizedError, match=r"under way: save after optimizer.step\(\)"):
        train(run, 1)
    assert run.engine.releases == 1


@pytest.mark.parametrize("mode", MODES)
def test_a_batch_in_hand_is_not_saved(mode, tmp_path):
    path = tmp_path / "run.ckpt"
    run = start(mode)
    with managed(run, 3) as batches:
        iterator = iter(batches)
        batch = next(iterator)
        with pytest.raises(DesynchronizedError, match="batch 0 was delivered"):
            run.engine.save_checkpoint(path=path)
        step(run, batch)
        with pytest.raises(DesynchronizedError, match="1 micro-batches of release 0"):
            run.engine.save_checkpoint(path=path)
    assert not path.exists()
    run.optimizer.abandon_batch()
    run.engine.save_checkpoint(path=path)


# Damaged and foreign files.


def saved(tmp_path, **options):
    tmp_path.mkdir(exist_ok=True)
    path = tmp_path / "run.ckpt"
    run = start(**options)
    train(run, 3)
    run.engine.save_checkpoint(path=path)
    return path


def fresh_and_unharmed(path, error, message, **options):
    """Loading is refused and the run is as it was: it trains as if nothing had happened."""
    run = start(**options)
    states = torch.get_rng_state()
    with pytest.raises(error, match=message):
        run.engine.load_checkpoint(path=path)
    assert run.engine.releases == 0
    assert torch.equal(torch.get_rng_state(), states)
    assert torch.equal(train(run), train(start(**options)))


def test_a_corrupt_file(tmp_path, other_process):
    path = saved(tmp_path)
    content = path.read_bytes()
    run = start()
    other_process()
    for length in (0, 10, 87, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:length])
        with pytest.raises(CheckpointError, match="truncated|not an anechoic checkpoint"):
            run.engine.load_checkpoint(path=path)
    for place in [0, 5, 30, 85, *np.linspace(90, len(content) - 1, 40).astype(int)]:
        damaged = bytearray(content)
        damaged[place] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match="corrupt|not an anechoic checkpoint"):
            run.engine.load_checkpoint(path=path)
    path.write_bytes(content + b"more")
    with pytest.raises(CheckpointError, match="corrupt"):
        run.engine.load_checkpoint(path=path)
    path.write_bytes(content)
    run.engine.load_checkpoint(path=path)
    assert run.engine.releases == 3


class Trap:
    def __reduce__(self):
        return os.system, ("exit 1",)


@pytest.mark.slow
def test_code_in_a_file_is_not_run(tmp_path):
    path = tmp_path / "run.ckpt"
    archive = io.BytesIO()
    torch.save({"mechanism": Trap()}, archive)
    for payload in (archive.getvalue(), pickle.dumps(Trap()), b"nothing"):
        digest = hashlib.sha256(payload).hexdigest().encode()
        path.write_bytes(checkpoint.MAGIC + digest + b"\n" + payload)
        fresh_and_unharmed(path, CheckpointError, "cannot be decoded|no torch archive")


def test_things_that_could_not_be_read_back_are_not_saved(tmp_path):
    path = saved(tmp_path)
    old = path.read_bytes()
    run = start()
    for thing in (Trap(), object(), lambda: 0, np.zeros(2), {1, 2}, torch.__version__):
        with pytest.raises(ValueError, match=r"checkpoint_dict\['thing'\]\[0\] is a"):
            run.engine.save_checkpoint(path=path, checkpoint_dict={"thing": [thing]})
    assert path.read_bytes() == old


@pytest.mark.parametrize("stage", ["write", "fsync", "replace"])
@pytest.mark.few(1)
def test_an_interrupted_save_leaves_the_old_checkpoint(stage, tmp_path, monkeypatch, other_process):
    path = saved(tmp_path)
    old = path.read_bytes()
    other_process()
    run = start(keys=False)
    run.engine.load_checkpoint(path=path)
    train(run, 5)

    def fail(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        if stage == "write":
            patch.setattr(atomic_files.HashingWriter, "write", fail)
        else:
            patch.setattr(os, stage, fail)
        with pytest.raises((OSError, RuntimeError)):
            run.engine.save_checkpoint(path=path)
    assert path.read_bytes() == old
    logs = {".journal-wal", ".journal-shm"}  # the journal is open
    assert {name.suffix for name in tmp_path.iterdir()} <= {".ckpt", ".journal", ".lock", *logs}
    run.engine.save_checkpoint(path=path)
    assert path.read_bytes() != old


# Another run.


def something_else(path):
    torch.save(network().state_dict(), path)


REFUSED = {  # what becomes of the file, the error, and how the run that loads it is set up
    "missing": (lambda path: path.unlink(), CheckpointError, "cannot be read: No such file", {}),
    "of something else": (something_else, CheckpointError, "not an anechoic checkpoint", {}),
    "mechanism": (None, MismatchError, "fingerprint", {"mech": mechanism(noise_std=0.6)}),
    "grid": (
        None,
        MismatchError,
        "grid_bits=20.*read",
        {"mech": replace(mechanism(), grid_bits=20)},
    ),
    "order": (None, MismatchError, "batches in one permuted order", {"shuffle": False}),
    "order, and other digits": (
        *(None, MismatchError, "batches in one permuted order"),
        {"shuffle": False, "mech": with_other_digits(mechanism())},
    ),
    "optimizer": (None, MismatchError, "optimizer=Adam was SGD", {"optimizer": adam}),
    "reduction": (None, MismatchError, "loss_reduction=sum was mean", {"reduction": "sum"}),
    "mode": (None, MismatchError, "grad_sample_mode=ghost", {"mode": "ghost"}),
    "chunks": (None, MismatchError, r"chunk_rows\)=4 was None", {"engine": {"chunk_rows": 4}}),
}


@pytest.mark.parametrize("name", mostly_slow(REFUSED, quick=("order, and other digits",)))
def test_what_a_run_cannot_go_on_from_is_refused(name, tmp_path, other_process):
    (spoil, error, message, options), path = REFUSED[name], saved(tmp_path)
    if spoil is not None:
        spoil(path)
    other_process()
    fresh_and_unharmed(path, error, message, **options)


@pytest.mark.parametrize(
    ("options", "steps", "error", "message"),
    [
        ({"model": torch.nn.Linear(6, 2)}, 0, MismatchError, "build the model as it was"),
        ({}, 1, ReplayError, "1 releases of its own"),
        ({"mech": with_other_digits(mechanism())}, 1, ReplayError, "made 1 releases of its own"),
    ],
)
def test_a_run_that_is_another_does_not_become_the_saved_one(
    options, steps, error, message, tmp_path, other_process
):
    path = saved(tmp_path)
    other_process()
    run = start(keys=False, **options)
    before = train(run, steps)
    with pytest.raises(error, match=message):
        run.engine.load_checkpoint(path=path)
    assert torch.equal(weights(run.model), before) and run.engine.releases == steps


def test_objects_of_another_run_are_refused(tmp_path):
    run, other = start(), start()
    for call in (run.engine.save_checkpoint, run.engine.load_checkpoint):
        with pytest.raises(MismatchError, match="module is not the one"):
            call(path=tmp_path / "x", module=other.module)
        with pytest.raises(MismatchError, match="optimizer is not the one"):
            call(path=tmp_path / "x", optimizer=other.optimizer)
        with pytest.raises(ValueError, match="noise_scheduler must be None"):
            call(path=tmp_path / "x", noise_scheduler=object())
        with pytest.raises(ValueError, match="must be a file name"):
            call(path=io.BytesIO())
    assert os.listdir(tmp_path) == []


# Replay.


@pytest.mark.slow
def test_going_back_in_one_process_is_refused(tmp_path):
    path = tmp_path / "run.ckpt"
    run = start()
    train(run, 3)
    run.engine.save_checkpoint(path=path)
    run.engine.load_checkpoint(path=path)  # nothing was released since
    train(run, 5)
    with pytest.raises(ReplayError, match="has made 5 releases under this key, and would go back to 3"):
        run.engine.load_checkpoint(path=path)
    with pytest.raises(ReplayError, match="has made 5 releases under this key"):
        start(keys=False).engine.load_checkpoint(path=path)
    before = weights(run.model)
    assert run.engine.releases == 5
    train(run)
    assert not torch.equal(weights(run.model), before)


# Elsewhere.


def elsewhere(monkeypatch, **change):
    """As on another machine; the arithmetic stays the same unless a test changes it."""
    here = environment(torch.device("cpu"))
    monkeypatch.setattr(checkpoint, "environment", lambda device: here | change)


@pytest.mark.parametrize("keys", [True, False])
@pytest.mark.parametrize(("began", "goes_on"), [(CHACHA, AES), (AES, CHACHA)])
def test_a_run_keeps_the_cipher_that_it_began_with(
    began, goes_on, keys, tmp_path, other_process, monkeypatch
):
    path = tmp_path / "run.ckpt"
    assert [noise_adder.usual_cipher(torch.device(d)) for d in ("cpu", "cuda:1")] == [AES, CHACHA]
    monkeypatch.setattr(noise_adder, "usual_cipher", lambda device: began)  # as on a device, and on the CPU
    run = start()
    train(run, 2)
    run.engine.save_checkpoint(path=path, keys=keys)
    assert run.optimizer.noise_adder.stream.cipher == began
    other_process()
    monkeypatch.setattr(noise_adder, "usual_cipher", lambda device: goes_on)
    resumed = start(keys=not keys)
    assert resumed.optimizer.noise_adder.stream.cipher == goes_on
    resumed.engine.load_checkpoint(path=path)
    assert resumed.optimizer.noise_adder.stream.cipher == began
    assert torch.equal(train(resumed, 3), train(run, 3))


@pytest.mark.parametrize("grid_bits", [None, 20])
def test_a_run_moves_from_the_noise_of_a_device_to_the_cpu(grid_bits, tmp_path, other_process, monkeypatch):
    path = tmp_path / "run.ckpt"
    mech = Mechanism(BLT(15, [0.2, 0.1], [0.9, 0.5]), FixedOrder(40, 8, steps=15), 0.5, grid_bits=grid_bits)
    monkeypatch.setattr(noise_adder, "usual_cipher", lambda device: CHACHA)
    expected = train(start(mech=mech), 5)
    other_process()
    ours = RowArrays.__init__

    def as_on_a_device(self, backend, kind, device):
        ours(self, backend, kind, device)
        self._on_cpu = backend != "torch"

    with monkeypatch.context() as there:
        there.setattr(RowArrays, "__init__", as_on_a_device)
        run = start(mech=mech)
        train(run, 3)
        run.engine.save_checkpoint(path=path)
    other_process()
    resumed = start(mech=mech, keys=False)
    resumed.engine.load_checkpoint(path=path)
    assert torch.equal(train(resumed, 5), expected)


@pytest.mark.slow
def test_a_folder_that_was_carried_to_another_machine_goes_on(tmp_path, other_process, monkeypatch):
    path = saved(tmp_path / "here")
    run = start(keys=False)
    shutil.move(shutil.copytree(tmp_path / "here", tmp_path / "there"), tmp_path / "carried")
    shutil.rmtree(tmp_path / "here")
    other_process()
    elsewhere(monkeypatch, cpu_capability="AVX512", machine="aarch64")
    with pytest.raises(ReplayError, match="adopt_journal=True"):
        run.engine.load_checkpoint(path=tmp_path / "carried" / path.name)
    run.engine.load_checkpoint(path=tmp_path / "carried" / path.name, adopt_journal=True)
    train(run, 6)


@pytest.mark.slow
def test_what_is_repeated_elsewhere_is_compared(tmp_path, other_process, monkeypatch, caplog):
    path = tmp_path / "run.ckpt"
    first = start()
    train(first, 3)
    first.engine.save_checkpoint(path=path)
    train(first, 5)
    first.engine._current().recorder.journal.close()  # its process is gone
    other_process()
    elsewhere(monkeypatch, cpu_capability="VSX", threads=64)
    same, rounding = start(keys=False), start(keys=False)
    same.engine.load_checkpoint(path=path)
    assert "cpu_capability=VSX was" in caplog.text and "threads=64 was" in caplog.text
    assert "2 are made again" in caplog.text and "resume with what was" in caplog.text
    train(same, 5)
    other_process()
    rounding.engine.load_checkpoint(path=path)
    rounding.criterion = lambda x, y: torch.nn.functional.cross_entropy(x * 1.0001, y)
    before = weights(rounding.model)
    with pytest.raises(ReplayError, match="release 3 was made before and would now be another one"):
        train(rounding, 4)
    assert torch.equal(weights(rounding.model), before)


@pytest.mark.parametrize(
    ("changed", "sync_every", "message"),
    [
        ({"threads": 64}, 2, r"threads=64 was .*journal_sync_every=2.*resume with what was"),
        ({"anechoic": "9.9"}, 1, "anechoic=9.9 was .*resume with what was"),
        ({"device": "cuda: card"}, 2, "device=cuda: card was cpu.*resume with what was"),
    ],
)
def test_what_the_journal_does_not_protect_is_refused(
    changed, sync_every, message, tmp_path, other_process, monkeypatch
):
    path = saved(tmp_path, engine={"journal_sync_every": sync_every})
    other_process()
    elsewhere(monkeypatch, **changed)
    fresh_and_unharmed(path, ReplayError, message)
    cuda = {**environment(torch.device("cpu")), "device": "cuda: card", "deterministic_algorithms": False}
    with pytest.raises(ReplayError, match="use_deterministic_algorithms"):  # kernels that differ each time
        check_place(cuda, dict(cuda), repeated=1, sync_every=2)
    check_place(cuda, dict(cuda), repeated=1, sync_every=1)


@pytest.mark.parametrize(("keys", "what"), [(True, "batches"), (False, "noise")])
def test_other_noise_or_batches_under_the_same_key_are_refused(
    keys, what, tmp_path, other_process, monkeypatch
):
    path = tmp_path / "run.ckpt"
    run = start()
    train(run, 3)
    run.engine.save_checkpoint(path=path, keys=keys)
    other_process()
    kind = type(run.loader.feed.batches) if what == "batches" else type(run.optimizer.noise_adder.stream)
    ours = kind.batch if what == "batches" else kind.next
    if what == "batches":
        monkeypatch.setattr(kind, "batch", lambda self, t: ours(self, t)[::-1])
    else:

        def other(self, state, out=None):
            row, state = ours(self, state, out=out)
            state._memory[0] += 1e-3
            return row, state

        monkeypatch.setattr(kind, "next", other)
    resumed = start(keys=not keys)
    with pytest.raises(
        ReplayError, match="noise or batches under the keys of the checkpoint come out as others"
    ):
        resumed.engine.load_checkpoint(path=path)
