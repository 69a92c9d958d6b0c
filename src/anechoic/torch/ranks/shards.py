"""Runs a model that `fully_shard` has cut up: ranks have a part of its weights, and those of a block at work.

torch's own hooks gather a block's weights in every call, on all ranks at once: a rank with fewer rows, or
whose rows take another way through the model, would hang, and they know nothing of rows side by side. So
while rows are worked on, hooks of our own take their place. A rank that needs a block says so in the word
that it exchanges with the others (`Ranks.exchange`), and all of them give their part, whatever they are at.

Storage is emptied as soon as a block is through, forward or backward: what autograd keeps of the weights is
that storage, which is filled again, with the same bits, before the backward pass reaches the block.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from anechoic.errors import UnsupportedError
from anechoic.torch.ranks.cut import CutTensor, blocks_in, is_cut, put_back
from anechoic.torch.ranks.group import Alone, Ranks
from anechoic.torch.structure import bits, is_object, mapped, parts_of, tensors_in


@dataclass(eq=False)
class CutBlock:
    """A module that `fully_shard` was called on.

    Attributes:
        number, name, module: of the block.
        places: of its parameters, with what stands there when it does not run, and its cut.
        users: how many hold the whole weights.
        before: what stood at its places when its calls began, which are not over.
    """

    number: int
    name: str
    module: nn.Module
    places: list[tuple[dict[str, Any], str, Any, CutTensor]]
    hooks: tuple[set[int], set[int]]
    users: int = 0
    before: list[list[Any]] = field(default_factory=list)

    @property
    def cuts(self) -> list[CutTensor]:
        """Each once."""
        return list({id(cut): cut for _, _, _, cut in self.places}.values())


class Shards:
    """Gives the blocks of a model their weights while rows are worked on.

    Args:
        module: the user's; at least one block of it was sharded.
        ranks: of the run.

    Raises:
        UnsupportedError: naming what is cut up otherwise than over all ranks along one axis.
    """

    def __init__(self, module: nn.Module, ranks: Alone) -> None:
        self._module, self._ranks = module, ranks
        self.blocks = _blocks(module)
        self._cuts = {id(p): cut for block in self.blocks for _, _, p, cut in block.places}
        self._open: list[CutBlock] = []  # blocks whose forward pass runs, outer ones first
        self._held: list[CutBlock] = []  # blocks that the backward pass has reached
        if isinstance(ranks, Ranks):
            ranks.serve = self._give

    # -- weights -------------------------------------------------------------------------------

    def _take(self, block: CutBlock) -> None:
        block.users += 1
        if block.users > 1:
            return
        with _aside():
            if isinstance(self._ranks, Ranks):
                self._ranks.exchange(f"the weights of {block.name or 'the model'}", wants=block.number)
                return
            for cut in block.cuts:
                cut.fill([bits(cut.own)])

    def _leave(self, block: CutBlock) -> None:
        block.users -= 1
        if not block.users:
            for cut in block.cuts:
                cut.empty()

    def _give(self, number: int) -> None:
        """All ranks: the weights of a block go to those that need them."""
        block, ranks = self.blocks[number], self._ranks
        if not isinstance(ranks, Ranks):
            return
        with _aside():
            where = f"the weights of block {number}"
            for cut in block.cuts:
                if cut.direct:
                    self._give_large(cut, where, wanted=block.users > 0)
            cuts = [cut for cut in block.cuts if not cut.direct]
            sent = torch.zeros(sum(cut.padded for cut in cuts), dtype=torch.uint8)
            place = 0
            for cut in cuts:
                own = bits(cut.own)
                sent[place : place + len(own)] = own
                place += cut.padded
            every = ranks.joined(sent, where).view(ranks.count, -1)
            if not block.users:
                return
            place = 0
            for cut in cuts:
                cut.fill([row[place : place + cut.padded] for row in every])
                place += cut.padded

    def _give_large(self, cut: CutTensor, where: str, *, wanted: bool) -> None:
        """Each rank's part, right to where it belongs; those that do not want it need memory for one part."""
        ranks: Any = self._ranks
        cut.here |= wanted
        for rank in range(ranks.count):
            place, size = cut.octets(rank), cut.part_bytes(rank)
            if rank == ranks.rank:
                ranks.spread(bits(cut.own), rank, where)
                if wanted:
                    place.copy_(bits(cut.own))
            else:
                ranks.spread(place if wanted else torch.empty(size, dtype=torch.uint8), rank, where)

    def whole(self, p: Tensor) -> Tensor:
        """What stands for a parameter while its block runs: of its shape, and without memory otherwise."""
        cut = self._cuts.get(id(p))
        return p if cut is None else cut.full

    def read(self, p: Tensor) -> Tensor:
        """A parameter as it is, whole; only this rank has it."""
        cut = self._cuts.get(id(p))
        if cut is None:
            return p
        block = next(block for block in self.blocks if cut in block.cuts)
        self._take(block)
        found = cut.full.detach().clone()
        self._leave(block)
        return found

    def release(self) -> None:
        """A backward pass is over, or given up."""
        held, self._held = self._held, []
        for block in held:
            self._leave(block)

    # -- around a call of the model ------------------------------------------------------------

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Calls of the model inside use the hooks of this object in the place of torch's."""
        put_back(self._module)
        outer, self._open = self._open, list(self._open)
        kept = []
        try:
            for block in self.blocks:
                own = block.module.__dict__
                before, after, always = (own[name] for name in _HOOKS)
                kept.append((own, before, after, always))
                firsts = [(i, hook) for i, hook in before.items() if i not in block.hooks[0]]
                rest = [(i, hook) for i, hook in after.items() if i not in block.hooks[1]]
                own[_HOOKS[0]] = OrderedDict([(_OURS, self._before(block)), *firsts])
                own[_HOOKS[1]] = OrderedDict([*rest, (_OURS, self._after(block))])
                own[_HOOKS[2]] = OrderedDict({**always, _OURS: True})  # where the call fails too
            yield
        finally:
            for own, *hooks in kept:
                own.update(zip(_HOOKS, hooks, strict=True))
            self._open = outer
            self.release()

    def _before(self, block: CutBlock) -> Callable[..., None]:
        def begin(*_: Any) -> None:
            self._open.append(block)
            block.before.append([own[name] for own, name, _, _ in block.places])
            self._take(block)
            for own, name, cut_up, cut in block.places:
                if own[name] is cut_up:  # else a trained one of this call, in the same memory
                    own[name] = cut.full

        return begin

    def _after(self, block: CutBlock) -> Callable[..., Any]:
        def end(module: nn.Module, given: Any, output: Any) -> Any:
            outer = self._open[:-1]
            if torch.is_grad_enabled():
                output = _gated(block, lambda: self._reached(block, outer), output)
            self._open.pop()
            for (own, name, _, _), before in zip(block.places, block.before.pop(), strict=True):
                own[name] = before
            self._leave(block)
            return output

        return end

    def _reached(self, block: CutBlock, outer: list[CutBlock]) -> None:
        """The backward pass is at the end of a call of `block`, made inside of those of `outer`.

        Autograd works on what was computed last first: all blocks but these are through.
        """
        keep = [*outer, block]
        for other in self._held:
            if other not in keep:
                self._leave(other)
        self._held = [other for other in self._held if other in keep]
        for one in keep:
            if one not in self._held:
                self._take(one)
                self._held.append(one)


_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_forward_hooks_always_called")
#: In the place of a hook's number, which are positive.
_OURS = -1


class Gate(torch.autograd.Function):
    """Outputs of a block: says when the backward pass reaches them, before it enters the block.

    Copies, which the model may change in place.
    """

    @staticmethod
    def forward(reached: Callable[[], None], *outputs: Tensor) -> Any:
        return tuple(output.clone() for output in outputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.reached = inputs[0]

    @staticmethod
    def vmap(info: Any, in_dims: Any, reached: Callable[[], None], *outputs: Tensor) -> Any:
        return Gate.apply(reached, *outputs), tuple(in_dims[1:])  # type: ignore[no-untyped-call]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:  # type: ignore[override]
        ctx.reached()
        return (None, *gradients)


def _gated(block: CutBlock, reached: Callable[[], None], output: Any) -> Any:
    todo = [output]
    while todo:
        part = todo.pop()
        if is_object(part):
            raise UnsupportedError(
                f"{block.name or 'the model'} was given to fully_shard, and returns a {type(part).__name__}:"
                " the backward pass must be seen to enter it, so let it return tensors in tuples, lists,"
                " dicts or dataclasses."
            )
        todo += parts_of(part)
    tensors = [t for t in tensors_in(output) if t.dtype.is_floating_point and t.requires_grad]
    if not tensors:
        return output
    passed: Any = iter(Gate.apply(reached, *tensors))  # type: ignore[no-untyped-call]
    known = {id(t) for t in tensors}
    return mapped(output, lambda t: next(passed) if id(t) in known else t)


@contextmanager
def _aside() -> Iterator[None]:
    """Plain numbers inside, whatever works on rows side by side outside."""
    functorch: Any = torch._functorch.pyfunctorch  # type: ignore[attr-defined]
    with torch._C.DisableTorchFunction(), functorch.temporarily_clear_interpreter_stack(), torch.no_grad():
        yield


def _blocks(module: nn.Module) -> list[CutBlock]:
    found = blocks_in(module)
    inside = {id(part) for _, part in found}
    blocks = []
    for number, (name, part) in enumerate(found):
        places: list[tuple[dict[str, Any], str, Any, CutTensor]] = []
        cuts: dict[int, CutTensor] = {}
        for layer in _own_layers(part, inside):
            for key, p in layer._parameters.items():
                if is_cut(p):
                    cut = cuts.setdefault(id(p), CutTensor(p))
                    places.append((layer._parameters, key, p, cut))
        state: Any = part._get_fsdp_state()  # type: ignore[operator]
        handles = (state._pre_forward_hook_handle, state._post_forward_hook_handle)
        before, after = ({h.id for h in getattr(one, "handles", [one])} for one in handles)
        blocks.append(CutBlock(number, name, part, places, (before, after)))
    return blocks


def _own_layers(part: nn.Module, inside: set[int]) -> Iterator[nn.Module]:
    """The layers of a block that are in no block inside of it."""
    yield part
    for layer in part.children():
        if id(layer) not in inside:
            yield from _own_layers(layer, inside)
