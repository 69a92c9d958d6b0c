"""Which rule gives the per-example gradients of a layer, and the rules that Opacus does not have right.

A rule is a closed formula for one class of layers under its plain options. Every other layer is
differentiated row by row (`functional`), which is right whatever the layer computes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from opacus.grad_sample import GradSampleModule
from opacus.layers.dp_multihead_attention import SequenceBias
from opacus.layers.dp_rnn import DPRNNBase, RNNLinear
from torch import Tensor, nn

Samples = dict[Any, Tensor]  # by parameter
#: (layer, positional tensors with the rows first, gradient of the output) -> per-example gradients
Rule = Callable[[Any, list[Tensor], Tensor], Samples]


def rule_of(layer: nn.Module, *, functorch: bool) -> Rule | None:
    """The rule for a layer as it is now, None where it is to be differentiated row by row.

    Args:
        layer: has trainable parameters of its own.
        functorch: whether to do without rules wherever that is possible.
    """
    if type(layer) is nn.EmbeddingBag:
        return _embedding_bag  # vmap cannot run it
    if functorch or "forward" in layer.__dict__ or type(layer) not in GradSampleModule.GRAD_SAMPLERS:
        return None
    if type(layer) is nn.Embedding:
        return _embedding
    if getattr(layer, "padding_mode", "zeros") != "zeros":
        return None  # Opacus unfolds as if it were zeros
    if type(layer) is nn.LayerNorm and getattr(layer, "bias", None) is None:
        return None
    rule: Rule = GradSampleModule.GRAD_SAMPLERS[type(layer)]
    return rule


def row_axis(layer: nn.Module, batch_first: bool) -> int:
    """The axis of the rows in what a layer is fed with, in a model whose batches come first or not."""
    if type(layer) in (RNNLinear, nn.EmbeddingBag):
        return 0  # whatever the model does
    if isinstance(layer, (DPRNNBase, SequenceBias)):
        batch_first = layer.batch_first
    return 0 if batch_first else 1


def _embedding(layer: nn.Embedding, inputs: list[Tensor], backprops: Tensor) -> Samples:
    rows = len(inputs[0])
    index = inputs[0].reshape(rows, -1)
    found = backprops.new_zeros((rows, *layer.weight.shape))
    values = backprops.reshape(rows, index.shape[1], layer.embedding_dim)
    found.scatter_add_(1, index.unsqueeze(-1).expand_as(values), values)
    if layer.padding_idx is not None:
        found[:, layer.padding_idx] = 0
    return {layer.weight: found}


def _embedding_bag(layer: nn.EmbeddingBag, inputs: list[Tensor], backprops: Tensor) -> Samples:
    words, offsets = inputs[0], inputs[1] if len(inputs) > 1 else None
    weights = inputs[2] if len(inputs) > 2 else None
    bags = backprops.shape[0]
    device = words.device
    if words.dim() == 2:
        bag = torch.arange(bags, device=device).repeat_interleave(words.shape[1])
    else:
        starts = torch.zeros(0, dtype=torch.long, device=device) if offsets is None else offsets[:bags]
        places = torch.arange(len(words), device=device)
        bag = torch.searchsorted(starts.contiguous(), places, right=True) - 1
    words = words.reshape(-1)
    share = backprops.new_ones(len(words)) if weights is None else weights.reshape(-1).to(backprops.dtype)
    if layer.padding_idx is not None:
        share = share * (words != layer.padding_idx)
    if layer.mode == "mean":
        counted = (
            torch.ones_like(share) if layer.padding_idx is None else (words != layer.padding_idx).to(share)
        )
        sizes = backprops.new_zeros(bags).index_add_(0, bag, counted).clamp(min=1)
        share = share / sizes[bag]
    found = backprops.new_zeros((bags * layer.num_embeddings, layer.embedding_dim))
    found.index_add_(0, bag * layer.num_embeddings + words, backprops[bag] * share[:, None])
    return {layer.weight: found.view(bags, *layer.weight.shape)}
