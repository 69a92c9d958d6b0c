"""Figures that add up: the least-squares ones, their errors, and sums without rounding."""

import numpy as np
import pytest

from anechoic import streaming
from tests.floats import same_bits

LAND = {"a": "N", "b": "N", "c": "N", "d": "S", "e": "S", "N": "land", "S": "land"}


def tree(rng, nodes):
    """Parents at random, the root 0; some of them the only ones below theirs."""
    return {f"{i}": f"{rng.integers(max(0, i - 4), i)}" for i in range(1, nodes)}


def incidence(shape):
    """(nodes, leaves): which leaves lie below a place, the long way."""
    found = np.zeros((len(shape.nodes), len(shape.leaves)))
    for j, leaf in enumerate(shape.leaves):
        node = leaf
        while True:
            found[shape.nodes.index(node), j] = 1
            if node not in shape._parents:
                break
            node = shape._parents[node]
    return found


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.few(5)
def test_figures_and_errors_are_those_of_least_squares(seed):
    rng = np.random.default_rng(seed)
    shape = streaming.Hierarchy(tree(rng, int(rng.integers(2, 14))))
    sums = incidence(shape)
    errors = dict(zip(shape.nodes, np.exp(rng.normal(0, 1.5, len(shape.nodes))).tolist(), strict=True))
    values = dict(zip(shape.nodes, rng.normal(50, 40, len(shape.nodes)).tolist(), strict=True))
    for node in shape.nodes:
        if node not in shape.leaves and rng.random() < 0.3:
            del values[node], errors[node]
    given = [shape.nodes.index(node) for node in values]
    weighted = sums[given].T / np.square([errors[node] for node in values])
    covariance = np.linalg.inv(weighted @ sums[given])
    expected = sums @ covariance @ weighted @ list(values.values())
    found = shape.consistent(values, errors)
    assert found.value == pytest.approx(expected, rel=1e-9, abs=1e-9)
    assert found.standard_error == pytest.approx(np.sqrt(np.diag(sums @ covariance @ sums.T)), rel=1e-9)
    own = np.array([errors.get(node, np.inf) for node in shape.nodes])
    assert (found.standard_error <= own * (1 + 1e-12)).all()


@pytest.mark.parametrize("spacing", [None, 1.0, 0.25])
def test_figures_add_up_without_rounding(spacing):
    rng = np.random.default_rng(5)
    for size in (1e-9, 1.0, 1e15) if spacing is None else (1.0, 1e6):
        shape = streaming.Hierarchy(tree(rng, 200))
        values = dict(zip(shape.nodes, size * rng.normal(0.1, 1, 200), strict=True))
        plain = shape.consistent(values, dict.fromkeys(shape.nodes, 0.1 * size))
        found = shape.consistent(values, dict.fromkeys(shape.nodes, 0.1 * size), spacing=spacing)
        figures = dict(zip(shape.nodes, found.value.tolist(), strict=True))
        for node, below in shape._below.items():
            for order in (below, below[::-1], rng.permutation(below).tolist()):
                assert same_bits(sum(figures[child] for child in order), figures[node])
        if spacing:
            assert not (found.value % spacing).any()
            below = incidence(shape).sum(axis=1)
            assert (np.abs(found.value - plain.value) <= spacing / 2 * below + 1e-6).all()
            wider = (found.high - found.low - plain.high + plain.low) / 2
            assert wider == pytest.approx(spacing / 2 * below, rel=1e-6)
        else:
            assert np.abs(found.value / size).max() < 1e3


def test_of_all_steps_the_figures_of_one_say_all_about_it():
    """Kronecker: least squares over places and steps together give what each step gives alone."""
    rng = np.random.default_rng(2)
    shape, steps = streaming.Hierarchy(LAND), 5
    sums = incidence(shape)
    stream = streaming.Stream(streaming.Count(), epsilon=1.0, horizon=steps)
    over_time = stream.covariance("count", range(steps))
    assert np.sqrt(np.diag(over_time)) == pytest.approx(
        [stream.standard_deviations(t)["count"] for t in range(steps)]
    )
    errors = np.exp(rng.normal(0, 1, len(shape.nodes)))
    figures = rng.normal(50, 40, (len(shape.nodes), steps))
    precision = np.linalg.inv(np.kron(np.diag(errors**2), over_time))
    design = np.kron(sums, np.eye(steps))
    covariance = np.linalg.inv(design.T @ precision @ design)
    best = (design @ covariance @ design.T @ precision @ figures.ravel()).reshape(figures.shape)
    variances = np.diag(design @ covariance @ design.T).reshape(figures.shape)
    for t in range(steps):
        scale = np.sqrt(over_time[t, t])
        own = dict(zip(shape.nodes, errors * scale, strict=True))
        found = shape.consistent(dict(zip(shape.nodes, figures[:, t], strict=True)), own)
        assert found.value == pytest.approx(best[:, t], rel=1e-7)
        assert found.standard_error**2 == pytest.approx(variances[:, t], rel=1e-7)


def board(**options):
    statistics = {
        "land": streaming.Count("d"),
        "regions": streaming.Histogram(["N", "S"], "r"),
        "districts": streaming.Histogram(list("abcde"), "d"),
    }
    return streaming.Stream(statistics, epsilon=1.0, horizon=3, **options)


@pytest.mark.slow
def test_errors_and_coverage_of_what_a_stream_released():
    shape, planned = streaming.Hierarchy(LAND), board()
    rng = np.random.default_rng(0)
    inside, off = [], []
    for _ in range(60):
        stream = streaming.Stream(planned.shared.statistics, mechanism=planned.mechanism, key=rng.bytes(32))
        districts = rng.choice(list("abcde"), 200).tolist()
        for _ in range(3):
            stream.update({"d": districts, "r": [LAND[d] for d in districts]})
            found = shape.of(stream.release())
        true = {d: 3 * districts.count(d) for d in "abcde"}
        true |= {r: sum(true[d] for d in "abcde" if LAND[d] == r) for r in "NS"} | {"land": 600}
        errors = np.array([found.named()[n] - true[n] for n in shape.nodes])
        off.append(errors / found["figures"].standard_error)
        inside.append(np.abs(off[-1]) <= 1.96)
        covered = [
            found["figures"].low[i] <= true[n] <= found["figures"].high[i] for i, n in enumerate(shape.nodes)
        ]
        assert (inside[-1] <= np.array(covered)).all()
    assert np.sqrt(np.mean(np.square(off), axis=0)) == pytest.approx(np.ones(8), abs=0.3)
    assert 0.9 < np.mean(inside) < 0.99
    assert found.epsilon == pytest.approx(1.0, rel=1e-3) and found.labels_of("figures") == shape.nodes


def test_no_tree_and_no_figures_are_refused():
    for parents, why in [
        ({}, "0 places without a parent"),
        ({"a": "b", "c": "d"}, "2 places without a parent"),
        ({"a": "b", "b": "a", "c": "d"}, "circle"),
    ]:
        with pytest.raises(ValueError, match=why):
            streaming.Hierarchy(parents)
    shape = streaming.Hierarchy({"a": "land", "b": "land"})
    good = {"a": 1.0, "b": 2.0}
    for values, errors, why in [
        ({"a": 1.0}, good, "'b' has no figure"),
        (good, {"a": 1.0}, "'b' has no figure, or no error"),
        ({**good, "c": 1.0}, {**good, "c": 1.0}, "'c' is no place"),
        ({**good, "a": np.nan}, good, "usual size"),
        (good, {**good, "b": 0.0}, "errors"),
    ]:
        with pytest.raises(ValueError, match=why):
            shape.consistent(values, errors)
    for spacing in (0.3, 2.0**-60, 0.0):
        with pytest.raises(ValueError, match="spacing"):
            shape.consistent(good, good, spacing=spacing)
    release = board().release()
    with pytest.raises(ValueError, match="no place of this hierarchy"):
        streaming.Hierarchy({"a": "N", "N": "land"}).of(release)
    mean = streaming.Stream(streaming.Mean(0, 1), epsilon=1.0, horizon=1).release()
    with pytest.raises(ValueError, match="no plain count"):
        shape.of(mean)
    twice = {"a": streaming.Count(), "h": streaming.Histogram(["a", "b"])}
    with pytest.raises(ValueError, match="stands in two statistics"):
        shape.of(streaming.Stream(twice, epsilon=1.0, horizon=1).release())
