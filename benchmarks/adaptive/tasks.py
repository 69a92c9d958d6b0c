"""Tasks of the grid, each with a model that is a function of one flat vector and one example."""

from __future__ import annotations

import math
import pydoc_data.topics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

from anechoic.demo.flights import flights_design
from anechoic.demo.metrics import auc
from studies.data.fashion_mnist import fashion_mnist

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Task:
    """Training and test examples, a model, batch size and passes.

    Attributes:
        data: training inputs and labels, test inputs and labels.
        shapes: of the parameters; those of one axis start at 0, others normal with variance 1 / fan-in.
        logits: (parameters, one input) -> logits, shape (classes,) or (positions, classes).
        batch_size: divides the number of training examples.
        ranked: whether the metric is the area under the ROC curve, not accuracy.
        layers: whether the model is layers of matrix and bias with ReLUs between them: clipped gradients then
            have a closed form.
        from_zero: whether all parameters start at 0.
        delta: of the guarantee.
        drawable: whether batches may be drawn: not from what comes in the order of time.
    """

    name: str
    data: tuple[Tensor, Tensor, Tensor, Tensor]
    shapes: tuple[Shape, ...]
    logits: Callable[[tuple[Tensor, ...], Tensor], Tensor]
    batch_size: int
    epochs: int
    ranked: bool = False
    layers: bool = False
    from_zero: bool = False
    delta: float = 1e-5
    drawable: bool = True

    @property
    def examples(self) -> int:
        return len(self.data[0])

    @property
    def steps(self) -> int:
        return self.epochs * (self.examples // self.batch_size)

    @property
    def dimension(self) -> int:
        return sum(math.prod(shape) for shape in self.shapes)

    def parameters(self, theta: Tensor) -> tuple[Tensor, ...]:
        """Of one flat vector, shape (m,)."""
        parts = torch.split(theta, [math.prod(shape) for shape in self.shapes])
        return tuple(part.view(shape) for part, shape in zip(parts, self.shapes, strict=True))

    def start(self, seed: int) -> Tensor:
        """Shape (m,)."""
        g = torch.Generator().manual_seed(1000 + seed)
        parts = []
        for shape in self.shapes:
            scale = 0.0 if len(shape) == 1 or self.from_zero else shape[0] ** -0.5
            parts.append(scale * torch.randn(math.prod(shape), generator=g))
        return torch.cat(parts)

    def loss(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.logits(self.parameters(theta), x), y)

    def clipped_sum(self, theta: Tensor, x: Tensor, y: Tensor, there: Tensor, clip: float = 1.0) -> Tensor:
        """Gradients of examples, each clipped to norm `clip`, added up and divided by it.

        Args:
            theta: (seeds, rates, m).
            x, y: a batch for each seed, (seeds, batch, ...).
            there: (seeds, batch), 0 where a place of the batch is empty, else 1.
        """
        if self.layers:
            return self._sum_of_layers(theta, x.flatten(2), y, there, clip)
        of_examples = torch.func.vmap(torch.func.grad(self.loss), in_dims=(None, 0, 0))
        each = torch.func.vmap(torch.func.vmap(of_examples, in_dims=(0, None, None)))(theta, x, y)
        factors = there[:, None] / each.norm(dim=-1).clamp(min=clip)
        return torch.nan_to_num(torch.einsum("srbm,srb->srm", each, factors))

    def norms(self, count: int = 1000) -> Tensor:
        """Of the gradients of so many examples at the start, in increasing order."""
        x, y = self.data[:2]
        of_examples = torch.func.vmap(torch.func.grad(self.loss), in_dims=(None, 0, 0))
        return of_examples(self.start(0), x[:count], y[:count]).norm(dim=-1).sort().values

    def _sum_of_layers(self, theta: Tensor, x: Tensor, y: Tensor, there: Tensor, clip: float) -> Tensor:
        """By the products of inputs and errors of each layer: no gradient of an example is held."""
        parts = torch.split(theta, [math.prod(shape) for shape in self.shapes], -1)
        weights = [w.unflatten(-1, shape) for w, shape in zip(parts[::2], self.shapes[::2], strict=True)]
        inputs = [x[:, None]]
        for i, (w, b) in enumerate(zip(weights, parts[1::2], strict=True)):
            out = inputs[-1] @ w if i else torch.einsum("sbi,srio->srbo", x, w)
            out = out + b[..., None, :]
            inputs.append(torch.relu(out) if i + 1 < len(weights) else out)
        errors = [torch.softmax(inputs.pop(), -1) - F.one_hot(y, self.shapes[-1][0])[:, None]]
        for w, a in zip(weights[:0:-1], inputs[:0:-1], strict=True):
            errors.insert(0, (errors[0] @ w.mT) * (a > 0))
        squares = sum(
            (a.square().sum(-1) + 1.0) * e.square().sum(-1) for a, e in zip(inputs, errors, strict=True)
        )
        factors = there[:, None] / torch.as_tensor(squares).sqrt().clamp(min=clip)
        found = []
        for i, (a, e) in enumerate(zip(inputs, errors, strict=True)):
            scaled = e * factors[..., None]
            product = a.mT @ scaled if i else torch.einsum("sbi,srbo->srio", x, scaled)
            found += [product.flatten(-2), scaled.sum(-2)]
        return torch.nan_to_num(torch.cat(found, -1))

    def metric(self, theta: Tensor) -> float:
        """On the test examples; 0 for a model that is not finite."""
        *_, x, y = self.data
        with torch.no_grad():
            logits = torch.func.vmap(lambda row: self.logits(self.parameters(theta), row))(x)
        if not torch.isfinite(logits).all():
            return 0.0
        if self.ranked:
            return float(auc((logits[:, 1] - logits[:, 0]).numpy(), y.numpy()))
        return float((logits.argmax(-1) == y).float().mean())


# -- models ---------------------------------------------------------------------------------------


def _mlp(p: tuple[Tensor, ...], x: Tensor) -> Tensor:
    return torch.relu(x @ p[0] + p[1]) @ p[2] + p[3]


def _patches(x: Tensor, size: int, stride: int) -> Tensor:
    """(rows, columns, channels) -> (places, size * size * channels)."""
    last = x.shape[0] - size + 1
    shifted = [x[i : i + last : stride, j : j + last : stride] for i in range(size) for j in range(size)]
    return torch.cat(shifted, -1).flatten(0, 1)


def _cnn(p: tuple[Tensor, ...], x: Tensor) -> Tensor:
    h = torch.relu(_patches(x[..., None], 4, 2) @ p[0] + p[1])  # 6 x 6 places
    h = torch.relu(_patches(h.view(6, 6, -1), 3, 1) @ p[2] + p[3])  # 4 x 4 places
    return h.view(4, 4, -1).mean(0).flatten() @ p[4] + p[5]


def _layer_norm(h: Tensor) -> Tensor:
    centred = h - h.mean(-1, keepdim=True)
    return centred * (centred.square().mean(-1, keepdim=True) + 1e-5).rsqrt()


WIDTH, HEADS, CONTEXT = 16, 2, 12


def _transformer(p: tuple[Tensor, ...], x: Tensor) -> Tensor:
    """One causal layer; x: (positions,) of codes."""
    embedded, places, mixing, joined, up, shift, down, out, bias = p
    known = x[:, None] == torch.arange(len(embedded))
    h = known.to(embedded.dtype) @ embedded + places
    parts = (_layer_norm(h) @ mixing).view(CONTEXT, 3, HEADS, WIDTH // HEADS)
    query, key, value = (parts[:, i].transpose(0, 1) for i in range(3))  # heads, positions, width
    scores = query @ key.transpose(1, 2) * (HEADS / WIDTH) ** 0.5
    future = torch.ones(CONTEXT, CONTEXT).triu(1) * -1e4
    seen = torch.softmax(scores + future, -1) @ value
    h = h + seen.transpose(0, 1).reshape(CONTEXT, WIDTH) @ joined
    h = h + torch.relu(_layer_norm(h) @ up + shift) @ down
    return _layer_norm(h) @ out + bias


# -- tasks ----------------------------------------------------------------------------------------


def _small(pixels: np.ndarray) -> Tensor:
    """Averaged over squares of four pixels, 14 x 14."""
    averaged = pixels.reshape(-1, 14, 2, 14, 2).mean((2, 4))
    return torch.from_numpy(((averaged - 0.286) / 0.35).astype(np.float32))


def _rows(directory: Path) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """20,000 images of Fashion-MNIST at random, and its test images, as rows of pixels in [0, 1]."""
    x, y, test_x, test_y = (torch.from_numpy(part) for part in fashion_mnist(directory))
    some = torch.from_numpy(np.random.default_rng(1000).permutation(len(x))[:20_000])
    return x[some].flatten(1), y[some], test_x.flatten(1), test_y


def _softmax(p: tuple[Tensor, ...], x: Tensor) -> Tensor:
    return x @ p[0] + p[1]


def digits(directory: Path) -> Task:
    """1,500 of the digits of scikit-learn, one hidden layer of 32; the other 297 to test."""
    found = load_digits()
    order = np.random.default_rng(0).permutation(len(found.target))
    x = torch.tensor(found.data[order] / 16.0, dtype=torch.float32)
    y = torch.tensor(found.target[order])
    shapes: tuple[Shape, ...] = ((64, 32), (32,), (32, 10), (10,))
    return Task("digits", (x[:1500], y[:1500], x[1500:], y[1500:]), shapes, _mlp, 30, 5, layers=True)


def softmax(directory: Path) -> Task:
    """Fashion-MNIST by softmax regression."""
    shapes: tuple[Shape, ...] = ((784, 10), (10,))
    return Task("softmax", _rows(directory), shapes, _softmax, 400, 4, layers=True, from_zero=True)


def mlp(directory: Path) -> Task:
    """Fashion-MNIST by one hidden layer of 32."""
    shapes: tuple[Shape, ...] = ((784, 32), (32,), (32, 10), (10,))
    return Task("mlp", _rows(directory), shapes, _mlp, 400, 4, layers=True)


def cnn(directory: Path) -> Task:
    """6,000 images of Fashion-MNIST, made small, by two convolutions of 8 and 12 channels; 3,000 test."""
    x, y, test_x, test_y = fashion_mnist(directory)
    split = (_small(x[:6000]), torch.from_numpy(y[:6000]))
    split += (_small(test_x[:3000]), torch.from_numpy(test_y[:3000]))
    shapes = ((16, 8), (8,), (72, 12), (12,), (48, 10), (10,))
    return Task("cnn", split, shapes, _cnn, 150, 3)


def transformer(directory: Path) -> Task:
    """The next character of Python's own help texts, which every Python has, in windows of 12."""
    text = " ".join(
        " ".join(pydoc_data.topics.topics[key].split()) for key in sorted(pydoc_data.topics.topics)
    )
    letters = " abcdefghijklmnopqrstuvwxyz.,'"  # all others are one more
    codes = np.array([letters.find(letter) % (len(letters) + 1) for letter in text.lower()])
    windows = codes[: len(codes) // (CONTEXT + 1) * (CONTEXT + 1)].reshape(-1, CONTEXT + 1)
    some = torch.from_numpy(windows[np.random.default_rng(0).permutation(len(windows))[:5000]])
    x, y = some[:, :-1], some[:, 1:]
    classes, d = len(letters) + 1, WIDTH
    shapes = ((classes, d), (CONTEXT, d), (d, 3 * d), (d, d), (d, 2 * d), (2 * d,), (2 * d, d))
    shapes += ((d, classes), (classes,))
    return Task("transformer", (x[:3000], y[:3000], x[3000:], y[3000:]), shapes, _transformer, 100, 3)


HIDDEN, RANK = (64, 32), 4


def lora(directory: Path) -> Task:
    """A network that knows five classes of Fashion-MNIST learns the other five.

    The 30,000 rows of the known ones count as public; 5,000 others train a new last layer, and matrices of
    low rank that are added to the frozen ones.
    """
    pixels, labels, test_pixels, test_labels = fashion_mnist(directory)
    x, test_x = (_small(part).flatten(1) for part in (pixels, test_pixels))
    y, test_y = torch.from_numpy(labels), torch.from_numpy(test_labels)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = [nn.Linear(196, HIDDEN[0]), nn.Linear(*HIDDEN), nn.Linear(HIDDEN[1], 5)]
        model = nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])
        optimizer = torch.optim.Adam(model.parameters())
        known = torch.where(y < 5)[0]
        for some in (part for _ in range(3) for part in known[torch.randperm(len(known))].split(100)):
            optimizer.zero_grad()
            F.cross_entropy(model(x[some]), y[some]).backward()
            optimizer.step()
    frozen = [(layer.weight.detach().T, layer.bias.detach()) for layer in layers[:2]]

    def logits(p: tuple[Tensor, ...], row: Tensor) -> Tensor:
        for (weight, bias), down, up in zip(frozen, p[:4:2], p[1:4:2], strict=True):
            row = torch.relu(row @ weight + row @ down @ up.view(RANK, -1) + bias)
        return row @ p[4] + p[5]

    # the second factors are flat, so that they start at 0
    shapes: tuple[Shape, ...] = ((196, RANK), (RANK * HIDDEN[0],), (HIDDEN[0], RANK), (RANK * HIDDEN[1],))
    new, other = torch.where(y >= 5)[0][:5000], test_y >= 5
    split = (x[new], y[new] - 5, test_x[other], test_y[other] - 5)
    return Task("lora", split, (*shapes, (HIDDEN[1], 5), (5,)), logits, 100, 3)


def table(directory: Path) -> Task:
    """20,000 of the embedded flights at random: is it late by more than 15 minutes? Hidden layer of 8."""
    features, late = flights_design()
    some = np.random.default_rng(0).permutation(len(features))[:40_000]
    x, y = torch.from_numpy(features[some]), torch.from_numpy(late[some].astype(np.int64))
    split = (x[:20_000], y[:20_000], x[20_000:], y[20_000:])
    return Task("table", split, ((46, 8), (8,), (8, 2), (2,)), _mlp, 500, 3, ranked=True, layers=True)


def flights(directory: Path) -> Task:
    """The embedded flights in order of departure, the first four fifths to train, by a logistic model."""
    features, late = (torch.from_numpy(part) for part in flights_design())
    first, later = slice(0, 1024 * 256), slice(1024 * 256, None)
    split = (features[first], late[first].long(), features[later], late[later].long())
    return Task(
        "flights", split, ((46, 2), (2,)), _softmax, 256, 1,
        ranked=True, layers=True, from_zero=True, delta=1e-6, drawable=False,
    )  # fmt: skip


TASKS: dict[str, Callable[[Path], Task]] = {
    "digits": digits,
    "mlp": mlp,
    "softmax": softmax,
    "cnn": cnn,
    "transformer": transformer,
    "lora": lora,
    "table": table,
    "flights": flights,
}
