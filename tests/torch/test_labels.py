"""Labels of rows: rules against what a row's gradient depends on, sums against loops, losses that mix refused."""

import pytest

torch = pytest.importorskip("torch", reason="an extra installs it")

from anechoic.torch.labels import Axis, Batch, Mixed, Rows, Total, plain  # noqa: E402
from tests.torch.label_fuzz import program  # noqa: E402
from tests.torch.label_programs import APART, MIXED, ROWS, WIDTH  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
#: Losses that keep rows apart, and are refused all the same.
NEEDLESS = {"picked by a mask"}


def numbers(seed):
    draw = torch.Generator().manual_seed(seed)
    o, x = (torch.randn(ROWS, WIDTH, generator=draw) for _ in range(2))
    return o, torch.randint(0, WIDTH, (ROWS,), generator=draw), x


def cotangent(program, o, y, x):
    """Plain: the gradient at the outputs, of the loss times the number of rows."""
    o = o.clone().requires_grad_()
    (ROWS * program(o * 1, y, x)).backward()
    return o.grad


def verdict(program, o, y, x, rows=ROWS):
    """By labels: "" where rows are apart, else why they are not."""
    batch = Batch(rows, means=True, parameters=[])
    leaf = Rows(o.clone(), Axis(0), batch, requires_grad=True)
    batch.outputs = [leaf]
    y, x = Rows(y, Axis(0), batch), Rows(x, Axis(0), batch)
    program(leaf * 1, y, x).backward()
    root, grad = batch.roots[0], leaf.grad
    label = grad.label if type(grad) is Rows else None
    if label not in (None, Axis(0)):
        return getattr(label, "why", str(label)), plain(grad)
    if root != Total(-1):
        return f"root {getattr(root, 'why', root)}", plain(grad)
    return "", plain(grad)


def depends(program, o, y, x):
    """Whether the gradient of some row moves with numbers of others."""
    before = cotangent(program, o, y, x)
    for row in range(ROWS):
        for seed in (3, 4, 5):
            there = numbers(seed)
            mine = [t.clone() for t in there]
            for t, own in zip(mine, (o, y, x), strict=True):
                t[row] = own[row]
            after = cotangent(program, *mine)[row]
            if not torch.allclose(after, before[row], rtol=1e-4, atol=1e-6, equal_nan=True):
                return True
    return False


@pytest.mark.parametrize("name", sorted(APART))
def test_losses_of_single_rows_pass(name):
    given = numbers(0)
    why, grad = verdict(APART[name], *given)
    assert not depends(APART[name], *given), "the table is wrong"
    if name in NEEDLESS:
        assert why
        return
    assert why == ""
    expected = cotangent(APART[name], *given)
    assert torch.allclose(grad, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", sorted(MIXED))
def test_losses_that_mix_are_refused(name):
    why, _ = verdict(MIXED[name], *numbers(0))
    assert why
    assert depends(MIXED[name], *numbers(0)), "the table is wrong"


FUZZED, SIDE = 400, 4


def judged(seed):
    """(what the labels say, whether rows depend on others) of a random program; None where it does not run."""
    loss, draw = program(seed), torch.Generator().manual_seed(seed)

    def drawn():
        o, x = (torch.randn(SIDE, SIDE, generator=draw) for _ in range(2))
        return o, torch.randint(0, SIDE, (SIDE,), generator=draw), x

    given = drawn()
    try:
        leaf = given[0].clone().requires_grad_()
        (SIDE * loss(leaf * 1.0, *given[1:])).backward()
        expected = leaf.grad
    except (RuntimeError, ValueError, IndexError, TypeError, AttributeError):
        return None
    if expected is None or not bool(torch.isfinite(expected).all()):
        return None
    try:
        why, grad = verdict(loss, *given, rows=SIDE)
    except RuntimeError as error:  # inner errors would hide holes
        return f"raised {error}", None
    if why:
        return why, None
    assert torch.allclose(grad, expected, rtol=1e-3, atol=1e-4), (seed, grad, expected)
    others = [drawn() for _ in range(3)]
    for row in range(SIDE):
        for there in others:
            mine = [t.clone() for t in there]
            for t, own in zip(mine, given, strict=True):
                t[row] = own[row]
            o = mine[0].requires_grad_()
            (SIDE * loss(o * 1.0, *mine[1:])).backward()
            if not torch.allclose(o.grad[row], expected[row], rtol=1e-3, atol=1e-4, equal_nan=True):
                return "", True
    return "", False


def test_random_programs_have_no_hole():
    passed = 0
    for seed in range(FUZZED):
        found = judged(seed)
        if found is not None and not found[0]:
            passed += 1
            assert not found[1], f"program {seed} is called apart, and is not"
        assert found is None or not found[0].startswith("raised"), (seed, found[0])
    assert passed > FUZZED // 8  # some programs are apart
