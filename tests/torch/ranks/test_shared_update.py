"""Each rank updates some of the parameters: the same bits, and a part of the optimizer's state."""

import itertools
from dataclasses import replace

import pytest
import torch
from torch import nn

from anechoic.errors import DesynchronizedError, MismatchError, UnsupportedError
from anechoic.strategies import BLT
from anechoic.torch import CorrectedAdam
from anechoic.torch.shared_update import BY_PARAMETER, owners
from tests.floats import same_bits
from tests.torch.ranks.processes import on_ranks, results
from tests.torch.ranks.setting import STEPS, begun, digests, exact, train

AT = 3


def mechanism():
    return replace(exact("fixed"), strategy=BLT(STEPS, [0.4, 0.2], [0.9, 0.5]))


def model(seed=0):
    """Four matrices, of 30, 20, 20 and 10 entries."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        sizes = itertools.pairwise([6, 5, 4, 5, 2])
        return nn.Sequential(*(nn.Linear(a, b, bias=False) for a, b in sizes))


def adam(parameters):
    return torch.optim.AdamW(parameters, lr=0.03)


def of_kind(kind):
    more = {"momentum": 0.9} if kind in (torch.optim.SGD, torch.optim.RMSprop) else {}
    return lambda parameters: kind(parameters, lr=0.03, **more)


def fused(parameters, lr):
    return torch.optim.AdamW(parameters, lr=lr, fused=True)


def numbers(optimizer):
    """Entries of the state, but for counts of steps."""
    states = optimizer.original_optimizer.state.values()
    return sum(v.numel() for s in states for v in s.values() if isinstance(v, torch.Tensor) and v.dim())


def test_parameters_are_spread_by_their_sizes():
    assert owners([30, 20, 20, 10], 2) == [0, 1, 1, 0]
    assert owners([5], 3) == [0] and owners([1, 1, 1], 3) == [0, 1, 2]
    for count in (1, 2, 3, 7):
        sizes = [(37 * i) % 101 + 1 for i in range(50)]
        found = owners(sizes, count)
        loads = [sum(s for s, o in zip(sizes, found, strict=True) if o == rank) for rank in range(count)]
        assert max(loads) - min(loads) <= max(sizes)


@pytest.mark.slow
def test_the_weights_are_those_of_the_whole_optimizer():
    kinds = [*sorted(BY_PARAMETER, key=lambda kind: kind.__name__), fused]
    assert CorrectedAdam in kinds and torch.optim.AdamW in kinds

    def work(rank):
        found = []
        for kind in kinds:
            run = begun(mechanism(), model=model(), optimizer=of_kind(kind), share_optimizer=True)
            found.append((train(run), numbers(run[3])))
        return found

    whole, *ranks = results(1, work) + results(2, work) + results(3, work)
    for parts in (ranks[:2], ranks[2:]):
        for place, kind in enumerate(kinds):
            assert all(same_bits(part[place][0], whole[place][0]) for part in parts), kind
            kept = [part[place][1] for part in parts]
            assert sum(kept) == whole[place][1], kind
            if kind is torch.optim.AdamW:
                assert kept in ([80, 80], [60, 60, 40]), kept


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after", "share", "in_folder"),
    [(2, 3, True, True), (3, 1, True, True), (2, 2, False, True), (3, 2, True, False), (2, 1, True, False)],
)
def test_a_run_goes_on_where_its_state_was_divided(tmp_path, before, after, share, in_folder):
    path = tmp_path if in_folder else tmp_path / "run.ckpt"

    def saving(rank):
        run = begun(mechanism(), model=model(), optimizer=adam, share_optimizer=True)
        train(run, AT)
        run[0].save_checkpoint(path=path)
        return train(run)

    def resuming(rank):
        run = begun(mechanism(), model=model(1), optimizer=adam, share_optimizer=share, keys=False)
        run[0].load_checkpoint(path=path)
        kept = numbers(run[3])
        return train(run), kept, numbers(run[3])

    found = results(before, saving)[0]
    whole = digests(tmp_path)
    again = results(after, resuming)
    assert all(same_bits(weights, found) and now == kept for weights, kept, now in again)
    assert sum(kept for _, kept, _ in again) == (1 if share else after) * 160
    assert digests(tmp_path) == whole and len(whole) == STEPS - AT


@pytest.mark.slow
def test_an_update_that_fails_on_one_rank_stops_all(tmp_path):
    def work(rank):
        run = begun(mechanism(), model=model(), optimizer=adam, share_optimizer=True, journal=tmp_path)
        train(run, 1)
        if rank:
            plain = run[3].original_optimizer
            plain.param_groups[0]["betas"] = None
        train(run, 3)

    first, second = on_ranks(2, work, timeout=20)
    assert isinstance(second, TypeError)
    assert isinstance(first, DesynchronizedError) and "failed at the update of the model" in str(first)
    assert len(digests(tmp_path)) == 2


def hooked(rank):
    run = begun(mechanism(), model=model(), optimizer=adam, share_optimizer=True)
    run[3].register_step_post_hook(lambda *_: None)
    try:
        train(run, 1)
    finally:
        assert run[0].releases == 0


def saved_apart(rank):
    begun(mechanism(), model=model(), optimizer=adam, share_optimizer=True)[3].state_dict()


def saved_by_the_plain_one(rank):
    run = begun(mechanism(), model=model(), optimizer=adam, share_optimizer=True)
    run[3].original_optimizer.state_dict()


class Lars(torch.optim.SGD):
    pass


def unknown(rank):
    begun(mechanism(), model=model(), optimizer=of_kind(Lars), share_optimizer=True)


def on_one_alone(rank):
    begun(mechanism(), model=model(), optimizer=adam, share_optimizer=bool(rank))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("work", "kind", "match"),
    [
        (hooked, UnsupportedError, "hooks on the optimizer's steps"),
        (saved_apart, UnsupportedError, "a part of the optimizer's state"),
        (saved_by_the_plain_one, UnsupportedError, "a part of the optimizer's state"),
        (unknown, UnsupportedError, "share_optimizer=True with Lars"),
        (on_one_alone, MismatchError, "argument share_optimizer is True there, and False on rank 0"),
    ],
)
def test_what_would_see_a_part_is_refused(work, kind, match):
    for error in on_ranks(2, work, timeout=20):
        assert isinstance(error, kind) and match in str(error), error
