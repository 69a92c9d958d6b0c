"""Ghost clipping: the sum of clipped gradients is that of single rows, and what would escape is refused."""

import copy
import gc
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.graph import register_multi_grad_hook
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from anechoic.errors import DesynchronizedError, GuaranteeError, UnsupportedError
from anechoic.torch import PrivacyEngine
from anechoic.torch.sources.ghost.layer_calls import trainable_layers
from tests.marks import each_once
from tests.torch.setting import start, step, weights
from tests.torch.sources.ghost_setting import clipped, delivered, flat, ghost, normal, single_rows
from tests.torch.sums import check_release, release

B, T = 8, 5


def private(model, x, y, criterion=None, *, clip=1.0, batches=1, **options):
    """A run over all of x, with hardly any noise and a learning rate of 1."""
    return PrivacyEngine().make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=1.0),
        criterion=criterion or nn.MSELoss(),
        data_loader=DataLoader(TensorDataset(x, y), batch_size=len(x) // batches), mechanism="identity",
        noise_multiplier=1e-9, max_grad_norm=clip, target_delta=1e-5, epochs=1, poisson_sampling=False,
        grad_sample_mode="ghost", loss_reduction=getattr(criterion, "reduction", "mean"), **options,
    )  # fmt: skip


def square(model, x, y):
    return F.mse_loss(model(x), y)


def released(make, x, y, loss=square):
    return release(make, [x, y], loss, mode="ghost", noise=1e-9)


X, Y = normal(B, 3), normal(B, 1, seed=2)
LONG, LONG_Y = normal(B, T, 3), normal(B, 1, seed=2)


class Net(nn.Module):
    """Two layers, and what a table says that they are used for."""

    def __init__(self, use):
        super().__init__()
        self.a, self.b, self.use, self.hung = nn.Linear(3, 3), nn.Linear(3, 1), use, False

    def forward(self, x):
        return self.use(self, x)


class Places(nn.Module):
    """Words and their positions, and a head that shares the table of words."""

    def __init__(self, places, each=False):
        super().__init__()
        self.words, self.at, self.head = (
            nn.Embedding(7, 4),
            nn.Embedding(B + 2, 4),
            nn.Linear(4, 7, bias=False),
        )
        self.head.weight, self.places, self.each = self.words.weight, places, each

    def forward(self, tokens):
        at = self.at(self.places(tokens))
        return self.head((self.words(tokens) + (at[:, None] if self.each else at)).tanh()).mean(1)


class Image(nn.Module):
    """Two images of a row go through the layers side by side on the axis of the batch."""

    def __init__(self):
        super().__init__()
        self.a, self.norm, self.b = nn.Conv2d(2, 4, 3, stride=2), nn.GroupNorm(2, 4), nn.Linear(4, 1)

    def forward(self, x):
        h = self.b(self.norm(self.a(x.reshape(-1, 2, 6, 3))).relu().flatten(2).mean(2))
        return h.reshape(-1, 2).mean(1, keepdim=True)


class Changed(torch.autograd.Function):
    """The identity, whose gradient is changed."""

    @staticmethod
    def forward(ctx, x, change):
        ctx.change = change
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return ctx.change(gradient), None


def in_eval_mode(net, x):
    inner = net.a(x)
    net.a.eval()
    out = net.b(net.a(inner))
    net.a.train()
    return out


def hooked(net, x):
    if not net.hung:
        net.hung = True
        net.a.register_forward_hook(lambda layer, given, out: out * 3)
        net.a.register_forward_pre_hook(lambda layer, given: (given[0] + 1,))
    return net.b(net.a(x))


def pulled(net, x, hook):
    h = net.a(x)
    h.register_hook(hook)
    return net.b(h)


def again(reentrant):
    return lambda net, x: net.b(
        checkpoint(lambda h: net.a(h).tanh(), x.requires_grad_(), use_reentrant=reentrant)
    )


def over_row(g):
    return g * (0.01 / (g.norm(dim=1, keepdim=True) + 1e-9)).clamp(max=1)


def saliency(net, x):
    x = x.detach().requires_grad_()
    h = net.a(x)
    return net.b(h * torch.autograd.grad(h.square().sum(), x, retain_graph=True)[0])


def of_use(use):
    return lambda: Net(use)


TOKENS = torch.randint(0, 7, (B, B), generator=torch.Generator().manual_seed(3))
WORD = normal(B, 7, seed=4)
TABLE = normal(2, 3, seed=5)
WORKS = {
    "in eval mode": (of_use(in_eval_mode), X, Y),
    "left out of the loss": (of_use(lambda net, x: (net.a(x), net.b(x))[1]), X, Y),
    "forward hooks": (of_use(hooked), X, Y),
    "keyword": (of_use(lambda net, x: net.b(net.a(input=x))), X, Y),
    "in place": (of_use(lambda net, x: net.b(net.a(x).mul_(2).relu_())), X, Y),
    "no gradient at the input": (of_use(lambda net, x: net.b(net.a(x).detach())), X, Y),
    "saturated": (of_use(lambda net, x: net.b((1e4 * net.a(x)).relu())), X, Y),
    "checkpointing": (of_use(again(False)), X, Y),
    "reentrant checkpointing": (of_use(again(True)), X, Y),
    "a gradient for itself": (of_use(saliency), X, Y),
    "a function of its own": (of_use(lambda net, x: net.b(Changed.apply(net.a(x), over_row))), X, Y),
    "a hook on a gradient": (of_use(lambda net, x: pulled(net, x, over_row)), X, Y),
    "positions": (of_use(lambda net, x: net.b(net.a(x)).mean(1)), LONG, LONG_Y),
    "rows and positions in one axis": (
        of_use(lambda net, x: net.b(net.a(x.reshape(-1, 3))).reshape(-1, T, 1).mean(1)), LONG, LONG_Y),
    "copies of the rows": (
        of_use(lambda net, x: sum(net.b(net.a(torch.cat([x, 2 * x])).tanh()).chunk(2))), X, Y),
    "positions before rows": (
        of_use(lambda net, x: net.b(net.a(x.transpose(0, 1))).mean(0)), LONG, LONG_Y),
    "frames": (Image, normal(B, 2, 6, 6), Y),
    "places of one row": (lambda: Places(lambda t: torch.arange(t.shape[1])[None]), TOKENS, WORD),
    "places without rows": (lambda: Places(lambda t: torch.arange(t.shape[1])), TOKENS, WORD),
    "fewer places": (lambda: Places(lambda t: torch.arange(2, 2 + t.shape[1])), TOKENS[:, :T], WORD),
    "places of each row": (lambda: Places(lambda t: torch.arange(B).repeat(len(t), 1)), TOKENS, WORD),
    "places of the data": (lambda: Places(lambda t: t.flip(1) + 1), TOKENS, WORD),
    "bags": (of_use(lambda net, x: net.b(net.a(F.embedding_bag((x > 0).long(), TABLE)))), X, Y),
    "one number a row": (lambda: Places(lambda t: torch.full((len(t),), 3), each=True), TOKENS, WORD),
}  # fmt: skip


@pytest.mark.parametrize(("name", "clip"), each_once(WORKS, [0.01, 1.0, 100.0]))
@pytest.mark.few(9)
def test_the_sum_is_that_of_gradients_clipped_one_by_one(name, clip):
    make, x, y = WORKS[name]
    check_release(make, [x, y], square, mode="ghost", noise=1e-9, clip=clip, bound=1e-3)


CRITERIA = {
    "mean": nn.MSELoss(),
    "of classes": nn.CrossEntropyLoss(label_smoothing=0.1),
    "written out": lambda out, y: (out - y).square().sum(1).mean(),
    "of logits": lambda out, y: F.binary_cross_entropy_with_logits(out, y.sigmoid()),
    "of a loss a row": lambda out, y: (F.mse_loss(out, y, reduction="none").mean(1) * 3).mean(),
    "of several": lambda out, y: F.l1_loss(out, y) + 0.5 * F.softplus(out - y).mean(),
}


@pytest.mark.parametrize("name", CRITERIA)
def test_a_criterion_is_the_users_own(name):
    criterion, y = CRITERIA[name], normal(B, 4, seed=2)
    y = y.argmax(1) if name == "of classes" else y
    assert private(nn.Linear(3, 4), X, y, criterion)[2] is criterion
    loss = lambda model, x, y: criterion(model(x), y)  # noqa: E731
    check_release(lambda: nn.Linear(3, 4), [X, y], loss, mode="ghost", noise=1e-9, bound=1e-3)


def over_batch(g):
    return g * (1e3 / (g.norm() + 1e-9)).clamp(max=1)


def backward_hook(net, x, way):
    if way == "module" and not net.b._backward_hooks:
        net.b.register_full_backward_hook(lambda layer, found, _: (over_batch(found[0]),))
    h = net.a(x)
    if way == "node":
        h = h.tanh()
        h.grad_fn.register_hook(lambda found, _: (over_batch(found[0]),))
    if way == "several":
        register_multi_grad_hook([h], lambda found: found[0].copy_(over_batch(found[0])))
    return net.b(h)


def mixed(net, x):
    return net.b(net.a(x).roll(1, 0).tanh())


MIXES = "mixes rows|depends on other rows|has no axis of rows|whose rows it mixes"
DECIDED = r"decided by numbers taken out of batch 0(.|\n)*grad_sample_mode='rows'"
APART = "past the call of its layer"
USES = {
    "centred": (lambda net, x: net.b(net.a(x) - net.a(x).mean(0)), MIXES),
    "centred without a gradient": (lambda net, x: net.b(net.a(x) - net.a(x).mean(0).detach()), MIXES),
    "turned": (mixed, MIXES),
    "sorted": (lambda net, x: net.b(net.a(x)[net.a(x)[:, 0].argsort()]), MIXES),
    "scaled by all": (lambda net, x: net.b(net.a(x) / net.a(x).norm()), MIXES),
    "attention over rows": (lambda net, x: net.b((net.a(x) @ net.a(x).T).softmax(1) @ net.a(x)), MIXES),
    "another order of rows": (lambda net, x: net.b(net.a(x.flip(0)).flip(0)), MIXES),
    "statistics of the batch": (lambda net, x: net.b(F.batch_norm(x, None, None, training=True)), MIXES),
    "mixed after the last layer": (lambda net, x: net.b(net.a(x)).cumsum(0), MIXES),
    "some of the rows": (lambda net, x: net.b(x) + net.a(x[:4]).sum(), MIXES),
    "one row": (lambda net, x: net.b(x) + net.a(x[:1]).sum(), MIXES),
    "one row sees another": (lambda net, x: torch.cat([net.b(x)[:1] + net.b(x)[1:2], net.b(x)[1:]]), MIXES),
    "public numbers": (lambda net, x: net.b(x) + net.a(torch.ones(3, 3)).sum(), "has no axis of rows"),
    "bags of several lengths": (
        lambda net, x: net.b(F.embedding_bag((x > 0).long().flatten(), TABLE, torch.arange(B) * 2)), MIXES),
    "mixed in a segment": (
        lambda net, x: checkpoint(lambda h: mixed(net, h), x.requires_grad_(), use_reentrant=False), MIXES),
    "mixed in a reentrant segment": (
        lambda net, x: checkpoint(lambda h: mixed(net, h), x.requires_grad_(), use_reentrant=True), MIXES),
    "mixed by a function": (lambda net, x: net.b(Changed.apply(net.a(x), over_batch)), MIXES),
    "mixed by a hook on a tensor": (lambda net, x: pulled(net, x, over_batch), MIXES),
    **{f"mixed by a hook on a {way}": (lambda net, x, way=way: backward_hook(net, x, way), MIXES)
       for way in ("node", "several", "module")},
    "if": (lambda net, x: net.b(net.a(x) * 2 if x.sum() > 1e9 else net.a(x)), DECIDED),
    "item": (lambda net, x: net.b(net.a(x) * min(1, x.norm().item())), DECIDED),
    "numpy": (lambda net, x: net.b(net.a(x) * float(x.numpy().max())), DECIDED),
    "tolist": (lambda net, x: net.b(net.a(x) * x.tolist()[0][0]), DECIDED),
    "how many": (lambda net, x: net.b(net.a(x) * len(x.nonzero())), DECIDED),
    "functional": (lambda net, x: net.b(net.a(x) + F.linear(x, net.a.weight)), APART),
    "functional alone": (lambda net, x: net.b(F.linear(x, net.a.weight, net.a.bias)), APART),
    "a bias": (lambda net, x: net.b(net.a(x)) + net.a.bias.sum(), APART),
    "a penalty in the outputs": (lambda net, x: net.b(net.a(x)) + net.a.weight.square().sum(), APART),
    "other weights": (
        lambda net, x: net.b(torch.func.functional_call(net.a, {"weight": 2 * net.a.weight}, (x,))), APART),
    "by forward alone": (lambda net, x: net.b(net.a.forward(x)), APART),
}  # fmt: skip


@pytest.mark.parametrize("name", USES)
@pytest.mark.few(10)
def test_what_would_not_be_clipped_is_refused(name):
    use, words = USES[name]
    torch.manual_seed(0)
    model = Net(use)
    module, optimizer, criterion, loader = private(model, X.clone(), Y)
    before = weights(model)
    (x, y) = next(iter(loader))
    with pytest.raises(GuaranteeError, match=words):
        criterion(module(x), y).backward()
        optimizer.step()
    assert torch.equal(weights(model), before)
    model.use = lambda net, x: net.b(net.a(x))
    model.b._backward_hooks.clear()
    optimizer.zero_grad()
    criterion(module(x), y).backward()
    if words == DECIDED:  # of this batch it is known
        with pytest.raises(GuaranteeError, match=words):
            optimizer.step()
        return
    optimizer.step()
    assert not torch.equal(weights(model), before)


class Across(nn.Module):
    """A layer that is given one number of each row as its features."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(B, B), nn.Linear(3, 1)

    def forward(self, x):
        return self.b(x) + self.a(x[:, 0])[:, None]


def test_rows_as_features_are_refused():
    with pytest.raises(
        GuaranteeError, match=r"a \(Linear\) was called with an input of shape \(8,\) whose rows"
    ):
        released(Across, X, Y)


LOSSES = {
    "centred": (lambda out, y, p: (out - out.mean(0)).square().mean(), "mixes rows"),
    "a root of the mean": (lambda out, y, p: F.mse_loss(out, y).sqrt(), "mixes rows"),
    "a sum": (lambda out, y, p: F.mse_loss(out, y, reduction="sum"), "a sum over rows"),
    "a penalty": (lambda out, y, p: F.mse_loss(out, y) + sum(w.square().sum() for w in p.values()), APART),
    "rows meet rows": (lambda out, y, p: F.mse_loss(out, y[:, 0]), "mixes rows"),
}


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_that_would_not_be_clipped_is_refused(name):
    function, words = LOSSES[name]

    def loss(module, x, y):
        return function(module(x), y, dict(module.named_parameters()))

    with pytest.raises(GuaranteeError, match=words):
        released(lambda: nn.Linear(3, 1), X, Y, loss)


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(3, 3))


def own_forward():
    layer = nn.Linear(3, 1)
    layer.forward = lambda x: 3 * F.linear(x, layer.weight, layer.bias)
    return layer


def shared():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    return model


def compiled():
    layer = nn.Linear(3, 1)
    layer.compile()
    return layer


class Subclass(nn.Linear):
    pass


NOT_KNOWN = {
    "parameters of its own": (Scaled, "Scaled.* with parameters of its own"),
    "a subclass": (lambda: Subclass(3, 1), "Subclass.* with parameters of its own"),
    "weight norm": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(3, 1)), "ParametrizedLinear"),
    "old weight norm": (lambda: nn.utils.weight_norm(nn.Linear(3, 1)), r"'weight_g', 'weight_v'"),
    "forward of its own": (own_forward, r"with a forward\(\) of its own"),
    "shared": (shared, "0.weight and 1.weight are one parameter"),
    "padding": (lambda: nn.Conv1d(1, 1, 3, padding=1, padding_mode="circular"), "padding_mode='circular'"),
    "bilinear": (lambda: nn.Bilinear(3, 3, 1), "Bilinear"),
    "transposed": (lambda: nn.ConvTranspose1d(3, 3, 1), "ConvTranspose1d"),
    "statistics": (
        lambda: nn.InstanceNorm1d(3, affine=True, track_running_stats=True), "track_running_stats=True"),
    "compiled": (compiled, "compiled"),
    "bags of maxima": (lambda: nn.EmbeddingBag(9, 3, mode="max"), "EmbeddingBag.* with mode='max'"),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*weight_norm.*is deprecated")
@pytest.mark.parametrize("kind", NOT_KNOWN)
@pytest.mark.few(1)
def test_what_is_not_on_the_list_is_refused_before_anything_changes(kind):
    make, words = NOT_KNOWN[kind]
    model = make()
    with pytest.raises(UnsupportedError, match=words + "(.|\n)*grad_sample_mode='rows'"):
        private(model, X, Y)
    hooks = [hook for part in model.modules() for hook in part._forward_hooks.values()]
    assert all(not type(hook).__module__.startswith("anechoic") for hook in hooks)


def test_parameters_of_no_layer_are_refused():
    model = nn.Linear(3, 2)
    with pytest.raises(UnsupportedError, match="1 parameters of the optimizer belong to no layer"):
        trainable_layers(model, [*model.parameters(), nn.Parameter(torch.zeros(1))])


# What must leave nothing behind.


def test_a_failed_pass_leaves_nothing():
    class Stopped(torch.autograd.Function):
        @staticmethod
        def forward(ctx, h):
            return h.clone()

        @staticmethod
        def backward(ctx, _):
            raise KeyboardInterrupt

    model = Net(lambda net, x: net.b(Stopped.apply(net.a(x))))
    source, delivery = ghost(model, B)
    x = delivered(source, X)
    with pytest.raises(KeyboardInterrupt):
        model(x).sum().backward()
    assert source.batch.calls == []
    with pytest.raises(DesynchronizedError, match="no gradient reached this step"):
        source.sums(delivery)
    model.use = lambda net, x: net.b(net.a(x))
    model(x).sum().backward()
    once = source.sums(delivery)
    assert len(source.batch.calls) == 2
    model(x).sum().backward()
    with pytest.raises(DesynchronizedError, match="2 backward passes"):
        source.sums(delivery)
    source.zero_grad()
    model(x).sum().backward()
    assert torch.equal(flat(once), flat(source.sums(delivery)))


def test_a_failed_layer_has_its_parameters_again():
    model = nn.Linear(3, 1)
    source, _ = ghost(model, B)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="mat1 and mat2"):
            model(delivered(source, X)[:, :2])
        assert isinstance(model.weight, nn.Parameter) and not source.layers.inside


def test_gradients_of_gradients_are_refused():
    source, _ = ghost(model := nn.Linear(3, 1), B)
    with pytest.raises(UnsupportedError, match="create_graph=True"):
        model(delivered(source, X)).sum().backward(create_graph=True)


def test_copies_are_plain_models_and_so_is_the_model_when_its_run_is_gone():
    model = Net(lambda net, x: net.b(net.a(x)))
    source, _ = ghost(model, B)
    x = delivered(source, X)
    del model.use
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        twin.use = model.use = USES["turned"][0]
        twin(x).sum().backward()
        assert all(p.grad is not None for p in twin.parameters())
        assert torch.equal(twin(X), model(X))
        del model.use
    model.use = USES["turned"][0]
    assert source.batch.calls == []
    del source, x
    gc.collect()
    model(X).sum().backward()
    assert model.a.weight.grad is not None


def test_a_row_that_is_not_finite_counts_as_zero_and_spoils_no_other():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(2, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(12, 3))
    x = normal(B, 2, 5)

    def loss(out, which):
        return out.square().sum(1)

    expected = clipped(single_rows(model, x, loss, rows=[0, 1, 2, 4, 5, 6, 7]))
    for number in (float("inf"), float("nan")):
        x[3, 0, 1] = number
        source, delivery = ghost(model, B)
        loss(model(delivered(source, x)), None).sum().backward()
        assert torch.allclose(flat(source.sums(delivery)), expected, atol=1e-4)
        source.detach()


class Encoded(nn.Module):
    """A frozen layer that cannot take an empty batch."""

    def __init__(self):
        super().__init__()
        self.norm, self.a, self.b = nn.InstanceNorm1d(T), nn.Linear(3, 3), nn.Linear(3, 2)

    def forward(self, x):
        return {"logits": self.b(self.a(self.norm(x)).mean(1)), "words": ["kept"]}


@pytest.mark.parametrize("wrap", [True, False])
def test_an_empty_batch_goes_through_any_model(wrap):
    source, delivery = ghost(model := Encoded(), 0)
    made = model(delivered(source, torch.empty(0, T, 3)))
    assert made["logits"].shape == (0, 2) and made["words"] == ["kept"]
    F.cross_entropy(made["logits"], delivered(source, torch.empty(0, dtype=torch.int64))).backward()
    assert not flat(source.sums(delivery)).any()
    run = start("ghost", wrap_model=wrap)
    before = weights(run.model)
    batch = next(iter(run.loader))
    step(run, batch)
    assert not torch.equal(weights(run.model), before)


def test_a_compiled_model_is_run_as_it_is():
    run = start("ghost")
    x, y = next(iter(run.loader))
    run.criterion(torch.compile(run.module, backend="eager")(x), y).backward()
    run.optimizer.step()


def test_the_default_criterion_is_returned_where_none_is_given():
    run = start("ghost")
    assert isinstance(private(nn.Linear(3, 1), X, Y, None)[2], nn.MSELoss)
    assert isinstance(run.criterion, nn.CrossEntropyLoss)
