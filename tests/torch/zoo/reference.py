"""The reference: a loop over single rows with plain autograd, clipped and summed by hand in float64."""

import torch


def single_rows(shape, model, data):
    """Gradients of every row alone, shape (rows, parameters), float64; the model is called with one row.

    Nothing that a private run put on the model takes part.
    """
    return _single_rows(shape, model, data)


def _single_rows(shape, model, data):
    parameters = [p for p in model.parameters() if p.requires_grad]
    criterion = shape.criterion()
    found = []
    for row in range(len(data[-1])):
        *inputs, target = (part[row : row + 1] for part in data)
        loss = criterion(shape.output(model, inputs), target)
        for p in parameters:
            p.grad = None
        loss.backward()
        found.append(
            torch.cat(
                [(torch.zeros_like(p) if p.grad is None else p.grad).double().flatten() for p in parameters]
            )
        )
    for p in parameters:
        p.grad = None
    size = sum(p.numel() for p in parameters)
    return torch.stack(found) if found else torch.zeros(0, size, dtype=torch.float64)


def clipped_sum(gradients, clip_norm=1.0):
    """Sum of the rows, each clipped to `clip_norm`."""
    norms = gradients.norm(dim=1, keepdim=True)
    return (gradients * (clip_norm / norms.clamp(min=1e-300)).clamp(max=1.0)).sum(0)
