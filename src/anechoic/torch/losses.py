"""Losses of sequences that are means over rows: each row has its own number of tokens, and its own mean."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from anechoic._validate import one_of


def causal_lm_loss(
    logits: Tensor, labels: Tensor, *, ignore_index: int = -100, shift: bool = True, reduction: str = "mean"
) -> Tensor:
    """Return the cross-entropy of next tokens: the mean over each sequence's own, then over sequences.

    A mean over the tokens of a batch that count divides by what all rows decide, and is refused in a private
    run. Here a row's loss is its own: with n labels in it that count, 1/n times the sum of their -log p; 0
    without such a label. It works inside and outside of a private run, in every `grad_sample_mode`.

    Args:
        logits: shape (rows, tokens, words), as the model returns them. Half precision is computed in float32.
        labels: shape (rows, tokens), integers: in [0, words), or `ignore_index`.
        ignore_index: the label of what does not count (padding, prompts).
        shift: whether labels stand beside the tokens that they name, as `labels=input_ids` do, so that the
            logits at t are for the label at t + 1. False where the data have shifted them already.
        reduction: over rows: "mean", "sum" (with loss_reduction="sum"), or "none" for one loss a row.

    Returns:
        A number, in nats a token; shape (rows,) for "none". float32, or float64 where logits are.

    Raises:
        ValueError: for tensors of other shapes, or another reduction.

    >>> import torch
    >>> labels = torch.tensor([[0, 1, 2], [0, 1, -100]])
    >>> causal_lm_loss(torch.zeros(2, 3, 4), labels, reduction="none")
    tensor([1.3863, 1.3863])
    """
    one_of("reduction", reduction, ("mean", "sum", "none"))
    if logits.dim() != 3 or labels.shape != logits.shape[:2]:
        raise ValueError(
            f"logits of shape {tuple(logits.shape)} and labels of shape {tuple(labels.shape)}: they must be"
            " (rows, tokens, words) and (rows, tokens), as the model (outputs.logits) and the loader return"
            " them, without view(-1, …) and without shifting one of them."
        )
    if shift:  # labels move, not logits: a part of these would be a copy
        labels = F.pad(labels[:, 1:], (0, 1), value=ignore_index)
    wide = logits if logits.element_size() >= 4 else logits.float()
    flat = F.cross_entropy(wide.flatten(0, 1), labels.flatten(), reduction="none", ignore_index=ignore_index)
    # a row of ignored labels alone has a sum of 0, and 0 / 1
    rows = flat.view(labels.shape).sum(1) / (labels != ignore_index).sum(1).clamp(min=1)
    if reduction == "none":
        return rows
    return rows.sum() if reduction == "sum" else rows.mean()


def seq2seq_loss(
    logits: Tensor, labels: Tensor, *, ignore_index: int = -100, reduction: str = "mean"
) -> Tensor:
    """Return the cross-entropy of an encoder and decoder, whose logits at t are for the label at t.

    `labels`, `ignore_index`, `reduction`, result and errors are those of `causal_lm_loss`, which without
    `shift` is this loss. Masked language models and tags of tokens are of this kind too.
    """
    return causal_lm_loss(logits, labels, ignore_index=ignore_index, shift=False, reduction=reduction)
