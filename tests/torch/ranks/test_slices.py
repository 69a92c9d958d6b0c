"""A checkpoint in a folder: each rank writes its own noise, and what is not whole is not read."""

import os
import pickle
import shutil
import signal
import stat
from dataclasses import replace

import pytest
import torch

from anechoic.errors import CheckpointError, DesynchronizedError
from anechoic.noise.rounding.base import PAD
from anechoic.strategies import BLT, Identity
from anechoic.torch.checkpoints import checkpoint, slices
from anechoic.torch.ranks.group import Alone, Ranks
from tests.floats import same_bits
from tests.torch.ranks.processes import Died, on_ranks, results
from tests.torch.ranks.setting import STEPS, begun, digests, exact, train
from tests.torch.setting import network

pytestmark = pytest.mark.slow
AT = 3
STRATEGIES = {
    "blt": lambda: replace(exact("fixed"), strategy=BLT(STEPS, [0.4, 0.2], [0.9, 0.5])),
    "banded": lambda: exact("fixed", bands=3),
    "independent": lambda: replace(exact("poisson"), strategy=Identity(STEPS)),
}


def wide(seed=0):
    return network(seed=seed, dropout=0.2)


def narrow(seed=0):
    """12 entries: of five ranks one has none."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return torch.nn.Linear(6, 2, bias=False)


def saving(folder, kind="blt", *, steps=STEPS, model=wide):
    def work(rank):
        run = begun(STRATEGIES[kind](), model=model())
        train(run, AT)
        run[0].save_checkpoint(path=folder, checkpoint_dict={"epoch": 7})
        return train(run, steps)

    return work


def resuming(folder, kind="blt", *, model=wide):
    def work(rank):
        run = begun(STRATEGIES[kind](), model=model(1), keys=False)
        assert run[0].load_checkpoint(path=folder) == {"epoch": 7} and run[0].releases == AT
        return train(run)

    return work


@pytest.mark.parametrize(
    ("kind", "before", "after", "model"),
    [
        ("blt", 2, 3, wide),
        ("blt", 3, 1, wide),
        ("blt", 3, 2, wide),
        ("banded", 2, 1, wide),
        ("independent", 2, 3, wide),
        ("blt", 5, 2, narrow),
        ("banded", 2, 5, narrow),
    ],
)
def test_a_run_goes_on_on_another_number_of_ranks(tmp_path, kind, before, after, model):
    found = results(before, saving(tmp_path, kind, model=model))
    whole = digests(tmp_path)
    for weights in results(after, resuming(tmp_path, kind, model=model)):
        assert same_bits(found[0], weights)
    assert digests(tmp_path) == whole and len(whole) == STEPS - AT


def test_no_rank_is_given_the_noise_of_another(tmp_path):
    asked = []

    def work(rank):
        joined = Ranks.joined

        def looked_at(self, part, where):
            asked.append((where, len(part)))
            return joined(self, part, where)

        Ranks.joined = looked_at
        saving(tmp_path, steps=AT)(rank)
        return [length for where, length in asked if where == "save_checkpoint"]

    lengths = results(2, work)
    described = checkpoint.read(tmp_path)["noise"]
    rows = len(described["behind"])
    assert rows and lengths == [[rows * PAD]] * 2 and "rows" not in described
    (folder,) = tmp_path.glob("slices-*")
    state = {f"noise.{i}": torch.zeros(47, dtype=torch.float64) for i in range(rows)}
    slices.read(Alone(), folder, {name: (row, 47) for name, row in state.items()})
    (tmp_path / "one").mkdir()

    def one(rank):
        run = begun(STRATEGIES["blt"](), model=wide())
        train(run, AT)
        run[0].save_checkpoint(path=tmp_path / "one" / "run.ckpt")

    results(1, one)
    whole = checkpoint.read(tmp_path / "one" / "run.ckpt")["noise"]["rows"]
    assert same_bits(torch.stack(list(state.values())).numpy(), whole[:, :-PAD].numpy())


def test_nobody_but_the_owner_may_read_it(tmp_path):
    results(2, saving(tmp_path, steps=AT))
    (folder,) = tmp_path.glob("slices-*")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in folder.iterdir())


@pytest.mark.parametrize("place", ["write", "seal", "tidy"])
def test_a_folder_that_is_half_written_is_not_read(tmp_path, place):
    whole = results(2, saving(tmp_path))[0]

    def dying(rank):
        run = begun(STRATEGIES["blt"](), model=wide(), keys=False)
        run[0].load_checkpoint(path=tmp_path)
        train(run, AT + 1)
        if rank == (0 if place == "tidy" else 1):
            setattr(slices, place, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        run[0].save_checkpoint(path=tmp_path, checkpoint_dict={"epoch": 7})

    found = on_ranks(2, dying, timeout=20)
    assert {type(one) for one in found} == {Died, DesynchronizedError}
    assert len(list(tmp_path.glob("slices-*"))) == 2
    after = AT + 1 if place == "tidy" else AT  # the new one is whole but for what is cleared away

    def again(rank):
        run = begun(STRATEGIES["blt"](), model=wide(1), keys=False)
        run[0].load_checkpoint(path=tmp_path)
        assert run[0].releases == after
        train(run, AT + 2)
        run[0].save_checkpoint(path=tmp_path)
        return train(run)

    assert same_bits(results(3, again)[1], whole)
    assert len(list(tmp_path.glob("slices-*"))) == 1  # what was left over went with the next one


def _swap(new, old):
    shutil.copy(old / "__1_0.distcp", new / "__1_0.distcp")


def _cut(new, old):
    path = new / "__1_0.distcp"
    path.write_bytes(path.read_bytes()[:-1])


def _lose(new, old):
    (new / "__1_0.distcp").unlink()


@pytest.mark.parametrize("harm", [_swap, _cut, _lose])
@pytest.mark.parametrize("count", [1, 2])
def test_a_slice_that_does_not_belong_to_the_checkpoint_is_refused_on_all(tmp_path, harm, count):
    def work(rank):
        run = begun(STRATEGIES["blt"]())
        for at in (2, 4):
            train(run, at)
            run[0].save_checkpoint(path=tmp_path)
            if rank == 0 and at == 2:
                (old,) = tmp_path.glob("slices-*")
                shutil.copytree(old, tmp_path / "old")

    results(2, work)
    (new,) = tmp_path.glob("slices-*")
    harm(new, tmp_path / "old")

    def stale(rank):
        run = begun(STRATEGIES["blt"]())
        try:
            run[0].load_checkpoint(path=tmp_path)
        finally:
            assert run[0].releases == 0

    found = on_ranks(count, stale)
    assert any(isinstance(one, CheckpointError) and "__1_0.distcp" in str(one) for one in found), found
    assert all(isinstance(one, (CheckpointError, DesynchronizedError)) for one in found)


class _Evil:
    def __reduce__(self):
        return os.mkdir, ("/tmp/run-by-a-checkpoint",)


def test_a_description_that_would_run_code_is_refused(tmp_path):
    folder = tmp_path / f"slices-1-{'0' * 16}"
    folder.mkdir()
    (folder / ".metadata").write_bytes(pickle.dumps(_Evil()))
    with pytest.raises(CheckpointError, match=r"posix\.mkdir"):
        slices.check(Alone(), folder, slices.seal(Alone(), folder))
    with pytest.raises(CheckpointError, match="not the name"):
        slices.check(Alone(), tmp_path, {})


def test_what_a_folder_is_not_for_is_refused(tmp_path):
    def sealed(rank):
        run = begun(STRATEGIES["blt"]())
        train(run, 1)
        run[0].save_checkpoint(path=tmp_path, keys=False)

    for error in on_ranks(2, sealed):
        assert isinstance(error, ValueError) and "sealed" in str(error)

    def mixed(rank):
        run = begun(STRATEGIES["blt"]())
        train(run, 1)
        run[0].save_checkpoint(path=(tmp_path, tmp_path / "a.ckpt")[rank])

    for error in on_ranks(2, mixed):
        assert isinstance(error, DesynchronizedError) and "folder on some ranks" in str(error)
    (error,) = on_ranks(1, saving(tmp_path))
    assert isinstance(error, CheckpointError) and "is a folder" in str(error)
