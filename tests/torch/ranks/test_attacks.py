"""What goes wrong on one rank is refused on all: nobody hangs, and what is released is counted."""

import os
import signal
import time
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

from anechoic.budget import BudgetBook
from anechoic.errors import AnechoicError, DesynchronizedError, MismatchError, UnsupportedError
from anechoic.mechanism.mechanism import Mechanism
from anechoic.participation import MinSep
from anechoic.sampling import External
from anechoic.strategies import Identity
from anechoic.torch import PrivacyEngine
from anechoic.torch.setup import agreement
from tests.floats import same_bits
from tests.torch.ranks.processes import Died, on_ranks, results
from tests.torch.ranks.setting import ROWS, STEPS, begun, digests, exact, train
from tests.torch.setting import data, network

pytestmark = pytest.mark.slow


def refused(work, *, ranks=2, match, kind=AnechoicError):
    """What all ranks raise."""
    found = on_ranks(ranks, work, timeout=30)
    for error in found:
        assert isinstance(error, kind), "\n".join(getattr(error, "__notes__", [repr(error)]))
        assert match in str(error) or getattr(error, "of_ranks", False), str(error)
    assert any(match in str(error) for error in found), found
    return found


# -- at the beginning ---------------------------------------------------------------------------------


def other_code(rank):
    if rank:
        agreement._code = lambda: "edited"
    begun()


def other_weights(rank):
    begun(model=network(seed=rank))


def other_mechanism(rank):
    begun(exact(noise_std=0.5 + rank * 1e-9))


def other_data(rank):
    order = torch.randperm(60, generator=torch.Generator().manual_seed(rank))
    plain = data(60)
    begun(dataset=Subset(TensorDataset(*(t[order] for t in plain.tensors)), range(60)))


def other_length(rank):
    begun(exact(examples=60 + rank))


def other_arguments(rank):
    begun(loss_reduction=("mean", "sum")[rank])


def other_rates(rank):
    begun(optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1 * (1 + rank)))


def other_threads(rank):
    torch.set_num_threads(1 + rank)
    begun()


def other_chunks(rank):
    begun(chunk_rows=ROWS + rank)


@pytest.mark.parametrize(
    ("work", "match"),
    [
        (other_code, "code of anechoic is edited there"),
        (other_weights, "torch.manual_seed(0) before the model"),
        (other_mechanism, "mechanism is"),
        (other_data, "Give every rank the whole data set"),
        (other_length, "data length is 61 there, and 60 on rank 0"),
        (other_arguments, "argument loss_reduction is 'sum' there"),
        (other_rates, "optimizer group 0 is"),
        (other_threads, "software threads is 2 there"),
        (other_chunks, "argument chunk_rows is 9 there, and 8 on rank 0"),
    ],
)
def test_ranks_that_would_begin_different_runs_are_refused(work, match):
    found = refused(work, match=match, kind=MismatchError)
    assert "rank 1" in str(found[0]) and "rank 1" in str(found[1])


def test_what_fails_on_one_rank_at_the_beginning_fails_on_all():
    found = refused(
        lambda rank: begun(max_grad_norm=-1.0 if rank else 1.0), match="max_grad_norm", kind=Exception
    )
    assert isinstance(found[0], DesynchronizedError) and "rank 1 failed at make_private" in str(found[0])
    assert isinstance(found[1], ValueError)


def test_batches_that_a_sampler_draws_apart_are_refused():

    mech = replace(Mechanism(Identity(STEPS), External(MinSep(3, 2), 20, STEPS), 0.5), grid_bits=20)

    def work(rank):
        order = torch.randperm(60, generator=torch.Generator().manual_seed(rank)).split(20)
        begun(mech, loader={"batch_sampler": [part.tolist() for part in order]}, dataset=data(60))

    refused(work, match="differ from rank to rank", kind=DesynchronizedError)


def test_what_ranks_cannot_share_is_refused_by_name():
    def sampler(rank):
        dataset = data(60)
        begun(dataset=dataset, loader={"batch_size": 20, "sampler": DistributedSampler(dataset)})

    refused(sampler, match="DistributedSampler, which would be replaced", kind=UnsupportedError)
    refused(
        lambda rank: begun(grad_sample_mode="ghost", chunk_rows=None),
        match="grad_sample_mode='ghost'",
        kind=UnsupportedError,
    )
    refused(
        lambda rank: begun(replace(exact(), grid_bits=None)),
        match="share a release by exact sums alone",
        kind=UnsupportedError,
    )


# -- keys ---------------------------------------------------------------------------------------------


def test_every_rank_has_the_keys_of_rank_0_and_draws_noise_of_its_own():
    def work(rank):
        torch.manual_seed(7)  # the same on every rank, as in the field
        run = begun(keys=False)
        train(run, 2)
        private = run[0]._current()
        stream = private.release._stream
        own = stream.offset, stream.length, [stream.fresh(t).numpy() for t in range(STEPS)]
        whole = private.release.start_noise(private.keys.noise, whole=True)
        return private.keys.noise, own, [whole.fresh(t).numpy() for t in range(STEPS)]

    found = results(3, work)
    assert len({key for key, _, _ in found}) == 1
    place = 0
    for _, (offset, length, rows), whole in found:
        assert offset == place
        place += length
        assert all(
            same_bits(row, every[offset : offset + length]) for row, every in zip(rows, whole, strict=True)
        )
    assert place == len(found[0][2][0])
    starts = [rows[0][:10] for _, (_, _, rows), _ in found]
    assert not same_bits(starts[0], starts[1])


def test_noise_keys_of_several_ranks_must_be_one():
    def work(rank):
        engine = PrivacyEngine(noise_key=bytes([rank]) * 32, sampling_key=bytes([9]) * 32)
        model = network()
        engine.make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            data_loader=DataLoader(data(60), batch_size=20, shuffle=True),
            mechanism=exact(),
        )

    refused(work, match="key noise_key is", kind=MismatchError)


# -- in the midst of it -------------------------------------------------------------------------------


def test_a_rank_that_skips_a_batch_stops_all(tmp_path):
    def work(rank):
        _, _, module, optimizer, loader = begun(journal=tmp_path)
        for number, (x, y) in enumerate(loader):
            if rank == 1 and number == 2:
                continue  # the next batch is refused then, and this rank ends
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(x), y).backward()
            optimizer.step()

    found = on_ranks(2, work, timeout=20)
    assert all(isinstance(error, DesynchronizedError) for error in found), found
    assert len(digests(tmp_path)) == 2


def test_a_rank_that_steps_twice_or_without_a_batch_stops_all(tmp_path):
    def work(rank):
        run = begun(journal=tmp_path)
        train(run, 2)
        if rank:
            run[3].step()
        train(run, 4)

    refused(work, match="no batch was delivered for release 2", kind=DesynchronizedError)
    assert len(digests(tmp_path)) == 2


def test_weights_that_are_changed_on_one_rank_are_refused(tmp_path):
    def work(rank):
        run = begun(journal=tmp_path)
        train(run, 1)
        if rank:
            with torch.no_grad():
                run[1][0].weight[0, 0] += 1
        train(run, 2)

    refused(work, match="trainable parameter was changed", kind=Exception)
    assert len(digests(tmp_path)) == 1


def test_ranks_that_update_otherwise_are_refused(tmp_path):
    def work(rank):
        run = begun(journal=tmp_path)
        train(run, 1)
        run[3].param_groups[0]["lr"] *= 1 + rank
        train(run, 3)

    refused(
        work, match="the weights of rank 1 are not those of rank 0 at release 2", kind=DesynchronizedError
    )
    assert len(digests(tmp_path)) == 2


def test_weights_that_were_loaded_on_one_rank_are_refused():
    def work(rank):
        run = begun()
        if rank:
            run[1].load_state_dict(network(seed=4).state_dict())
        train(run, 1)

    refused(work, match="the weights of rank 1 are not those of rank 0 at release 0")


def test_an_error_in_step_on_one_rank_is_raised_on_all(tmp_path):
    def work(rank):
        run = begun(journal=tmp_path)
        train(run, 1)
        if rank == 1:
            run[3].max_grad_norm = 7.0
        train(run, 3)

    found = refused(work, ranks=3, match="optimizer.max_grad_norm=7.0")
    assert isinstance(found[1], MismatchError) and "rank 1 failed at release 1" in str(found[0])
    assert len(digests(tmp_path)) == 1


def test_a_journal_that_cannot_be_written_stops_all(tmp_path):
    def work(rank):
        run = begun(journal=tmp_path)
        train(run, 1)
        before = run[1][0].weight.detach().clone()
        if rank == 0:

            def fail(*_):
                raise OSError("the disk is full")

            run[0]._current().release.journal.record = fail
        try:
            train(run, 2)
        except (OSError, AnechoicError) as error:
            return str(error), bool(torch.equal(before, run[1][0].weight))
        return None

    found = results(2, work)
    assert "disk is full" in found[0][0] and "disk is full" in found[1][0]
    assert all(unchanged for _, unchanged in found)  # nobody used what is not in the journal


def test_a_rank_that_is_not_there_for_the_sum_stops_all(tmp_path):
    def work(rank):
        run = begun(journal=tmp_path)
        train(run, 1)
        if rank:
            run[0]._current().release._made = _out_of_memory
        try:
            train(run, 2)
        except DesynchronizedError as error:
            (tmp_path / "raised").touch()
            return str(error)
        except MemoryError:  # and this rank lives on: the others do not wait for it
            for _ in range(200):
                if (tmp_path / "raised").exists():
                    return "seen"
                time.sleep(0.1)
        return "the other rank waits"

    first, second = on_ranks(2, work, timeout=40)
    assert "another rank is gone" in first and second == "seen"
    assert len(digests(tmp_path)) == 1


def replaying(what):
    """A network that gives rank 1, at release 2, what went over it at release 1."""

    def work(rank, folder):
        run = begun(journal=folder)
        ranks, kept = run[0]._current().release.ranks, []
        add_up = ranks.add_up

        def attacked(integers, where):
            own = integers.clone()
            if rank and what == "contribution" and where == "release 2":
                integers.copy_(kept[0][0])
            if rank and what == "twice" and where == "release 2":
                integers.mul_(2)
            add_up(integers, where)
            if rank and what == "result" and where == "release 2":
                integers.copy_(kept[0][1])
            if where == "release 1":
                kept.append((own, integers.clone()))

        ranks.add_up = attacked
        train(run)

    return work


@pytest.mark.parametrize("what", ["contribution", "result", "twice"])
def test_a_replayed_sum_is_refused(tmp_path, what):
    found = on_ranks(2, lambda rank: replaying(what)(rank, tmp_path), timeout=20)
    assert all(isinstance(error, DesynchronizedError) for error in found), found
    assert any("not once in those of release 2" in str(error) for error in found), found
    assert len(digests(tmp_path)) == 2


class Deciding(nn.Module):
    """Whose second rank has rows that torch.func.vmap cannot run it on."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(6, 2)

    def forward(self, x):
        if torch.distributed.get_rank():
            x.storage()  # which no transform of torch.func has
        return self.layer(x)


@pytest.mark.filterwarnings("ignore:TypedStorage")
def test_a_model_that_vmap_runs_on_some_rows_only_is_refused(tmp_path):
    found = refused(
        lambda rank: train(begun(model=Deciding(), journal=tmp_path)),
        match="the model worked on one row after another on some ranks",
        kind=DesynchronizedError,
    )
    assert len(found) == 2 and not digests(tmp_path)


def _out_of_memory(*_):
    raise MemoryError("out of memory")


def test_a_rank_that_is_killed_stops_the_others_before_the_release(tmp_path):
    def work(rank):
        run = begun(journal=tmp_path)
        train(run, 2)
        if rank == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        train(run)

    found = on_ranks(3, work, timeout=60)
    assert isinstance(found[2], Died)
    for error in found[:2]:
        assert isinstance(error, DesynchronizedError) and "another rank is gone" in str(error)
    assert len(digests(tmp_path)) == 2


def test_draws_of_the_script_for_its_rows_are_refused():
    def work(rank):
        _, _, module, optimizer, loader = begun()
        for x, y in loader:
            nn.functional.cross_entropy(module(x + torch.randn_like(x)), y).backward()
            optimizer.step()

    found = on_ranks(2, work, timeout=30)
    assert any(isinstance(error, UnsupportedError) and "drew random numbers" in str(error) for error in found)
    assert all(isinstance(error, AnechoicError) for error in found)


def test_a_collate_function_that_draws_is_refused():
    def collate(examples):
        x, y = torch.utils.data.default_collate(examples)
        return x + torch.randn(x.shape), y

    def work(rank):
        train(begun(loader={"batch_size": 20, "shuffle": True, "collate_fn": collate}), 1)

    found = on_ranks(2, work, timeout=30)
    assert any(isinstance(error, UnsupportedError) and "collate_fn draws" in str(error) for error in found)


def test_a_module_inside_of_torchs_own_is_taken_out_of_it():
    def work(rank):
        plain = network(seed=rank)  # whose weights torch brings from rank 0
        model = DistributedDataParallel(plain) if torch.distributed.is_initialized() else plain
        return train(begun_with(model), 3)

    first, second = results(2, work)
    assert same_bits(first, second)
    assert same_bits(first, results(1, work)[0])


def begun_with(model):
    engine, _, module, optimizer, loader = begun(model=model)
    return engine, getattr(model, "module", model), module, optimizer, loader


# -- the budget ---------------------------------------------------------------------------------------


def test_ranks_book_one_run_and_a_second_one_is_refused_on_all(tmp_path):
    book = BudgetBook(tmp_path / "b.db", "flights")
    book.grant(exact().epsilon(1e-6), 1e-6)

    def work(rank):
        run = begun(keys=False)
        run[0]._current().book = book
        train(run, 2)
        return run[0].releases

    assert results(2, work) == [2, 2]
    assert [one.status for one in book.account().live] == ["spent"]
    found = refused(work, match="does not cover", kind=Exception)
    assert "rank 0 failed at the budget book" in str(found[1])
    assert len(book.account().live) == 1
