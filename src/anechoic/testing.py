"""The contract of a strategy, for the strategies of this library and for yours.

    from anechoic.testing import check_strategy

    def test_mine():
        check_strategy(MyStrategy(n=9, …))

Everything is compared with dense linear algebra, so use it at small n. What matters for the privacy
guarantee is checked against the numbers, not taken from the flags: `structure`, by which theorems are
chosen, `column_norms_squared` and `comb_norm_squared`, from which sensitivity is computed, and
`recurrence`, by which the noise is made.
"""

from __future__ import annotations

import json

import numpy as np

from anechoic import _serialize
from anechoic._validate import Array
from anechoic.strategies import Autoregressive, Buffered, MovingAverage, Recurrence, Strategy

ROUNDING = 1e-9  # relative to the largest entry compared
ZERO = 1e-12  # entries of C and C^T C below this, relative to the largest, count as zero


class ContractError(AssertionError):
    """A strategy breaks the contract; the message names the strategy, the rule and both numbers."""


def check_strategy(strategy: Strategy, *, serialized: bool = True, seed: int = 0) -> None:
    """Every check below, on one strategy.

    Args:
        strategy: C, with n small enough for dense algebra.
        serialized: whether C must survive a round trip through JSON (register its class with
            `anechoic._serialize.serializable`).
        seed: of the random vectors compared.

    Raises:
        ContractError: naming the first rule that is broken.
    """
    rng = np.random.default_rng(seed)
    check_dense(strategy)
    check_algebra(strategy, rng)
    check_structure(strategy)
    check_norms(strategy)
    check_truncate(strategy, rng)
    check_recurrence(strategy, rng)
    check_refusals(strategy)
    if serialized:
        check_serialized(strategy)


def check_dense(strategy: Strategy) -> None:
    """C is n x n, finite, lower-triangular, positive on the diagonal, and `multiply` agrees with it."""
    n, dense = strategy.n, strategy.to_dense()
    _require(strategy, dense.shape == (n, n), f"to_dense() has shape {dense.shape}, not ({n}, {n})")
    _require(strategy, dense.dtype == np.float64, f"to_dense() is {dense.dtype}, not float64")
    _require(strategy, bool(np.isfinite(dense).all()), "to_dense() has entries that are not finite")
    _require(strategy, not np.triu(dense, 1).any(), "to_dense() has entries above the diagonal")
    _require(strategy, bool((dense.diagonal() > 0).all()), "the diagonal of C is not positive")
    _close(strategy, strategy.multiply(np.eye(n)), dense, "multiply(identity) = to_dense()")
    dense[...] = np.nan  # what is handed out is a copy
    _require(strategy, bool(np.isfinite(strategy.to_dense()).all()), "to_dense() hands out its own storage")


def check_algebra(strategy: Strategy, rng: np.random.Generator) -> None:
    """multiply = dense product, solve = its inverse, on one, two and three axes; <y, C x> = <C^T y, x>."""
    n, dense = strategy.n, strategy.to_dense()
    for shape in ((n,), (n, 3), (n, 2, 2)):
        x = rng.standard_normal(shape)
        kept = x.copy()
        product = strategy.multiply(x)
        _close(strategy, product, np.tensordot(dense, x, axes=1), f"multiply(x) = C x for x of shape {shape}")
        solved = strategy.solve(x)
        scale = float(np.tensordot(np.abs(dense), np.abs(solved), axes=1).max())
        again = np.tensordot(dense, solved, axes=1)
        _close(strategy, again, x, f"C solve(x) = x, shape {shape}", scale=scale)
        _close(strategy, strategy.multiply(solved), x, f"multiply(solve(x)) = x, shape {shape}", scale=scale)
        _require(strategy, bool((x == kept).all()), "multiply or solve changed its argument")
        y = rng.standard_normal(shape)
        left, right = (y * product).sum(), (np.tensordot(dense.T, y, axes=1) * x).sum()
        _close(strategy, left, right, "<y, C x> = <C^T y, x>", scale=np.abs(y).sum() * np.abs(product).max())


def check_structure(strategy: Strategy) -> None:
    """Each flag of `structure` is true of the dense matrix; theorems are chosen by nothing else."""
    n, dense, structure = strategy.n, strategy.to_dense(), strategy.structure
    gram = dense.T @ dense
    lag = np.subtract.outer(np.arange(n), np.arange(n))
    tiny = ZERO * np.abs(dense).max()

    bands, gram_bands = structure.bands, structure.gram_bands
    _require(
        strategy, 1 <= gram_bands <= bands <= n, f"1 <= gram_bands={gram_bands} <= bands={bands} <= n={n}"
    )
    outside = float(np.abs(dense[lag >= bands]).max(initial=0.0))
    _require(strategy, outside <= tiny, f"bands={bands} but C has {outside} at a lag >= {bands}")
    outside = float(np.abs(gram[np.abs(lag) >= gram_bands]).max(initial=0.0))
    _require(
        strategy,
        outside <= ZERO * gram.max(),
        f"gram_bands={gram_bands} but C^T C has {outside} at a lag >= {gram_bands}",
    )
    if structure.nonnegative:
        _require(strategy, float(dense.min()) >= -tiny, f"nonnegative but C has an entry {dense.min()}")
    if structure.toeplitz:
        column = strategy.coefficients
        _require(strategy, column.shape == (n,), f"coefficients has shape {column.shape}, not ({n},)")
        expected = np.where(lag >= 0, column[np.maximum(lag, 0)], 0.0)
        _close(strategy, dense, expected, "toeplitz: C[i, j] = coefficients[i - j]")
    if structure.nonincreasing:
        _require(
            strategy,
            structure.toeplitz and structure.nonnegative,
            "nonincreasing without toeplitz, nonnegative",
        )
        rise = float(np.diff(dense[:, 0]).max(initial=0.0))
        _require(strategy, rise <= tiny, f"nonincreasing but the coefficients rise by {rise}")


def check_norms(strategy: Strategy) -> None:
    """Column norms, the largest of them, and the norms of all combs of columns."""
    n, dense = strategy.n, strategy.to_dense()
    norms = np.square(dense).sum(axis=0)
    _close(strategy, strategy.column_norms_squared(), norms, "column_norms_squared()")
    _close(strategy, strategy.largest_column_norm(), np.sqrt(norms.max()), "largest_column_norm()")
    for separation in {1, 2, 3, max(1, n // 2), n, n + 2}:
        most = -(-n // separation)
        for count in {1, min(2, most), most}:
            comb = dense[:, : (count - 1) * separation + 1 : separation].sum(axis=1)
            found = strategy.comb_norm_squared(separation, count)
            _close(strategy, found, comb @ comb, f"comb_norm_squared({separation}, {count})")


def check_truncate(strategy: Strategy, rng: np.random.Generator) -> None:
    """truncate(t) is the leading t x t block, and a strategy in its own right."""
    n, dense = strategy.n, strategy.to_dense()
    z = rng.standard_normal((n, 2))
    rows = strategy.solve(z)
    for steps in {1, max(1, n // 2), max(1, n - 1), n}:
        block = strategy.truncate(steps)
        _require(strategy, block.n == steps, f"truncate({steps}) has n={block.n}")
        _close(strategy, block.to_dense(), dense[:steps, :steps], f"truncate({steps}) = leading block")
        _close(strategy, block.solve(z[:steps]), rows[:steps], f"truncate({steps}).solve = leading rows")
        check_structure(block)
        check_norms(block)


def check_recurrence(strategy: Strategy, rng: np.random.Generator) -> None:
    """The rows that `recurrence` describes are those of C^-1 Z."""
    z = rng.standard_normal((strategy.n, 2))
    recurrence = strategy.recurrence()
    _require(
        strategy, recurrence.n == strategy.n, f"recurrence().n={recurrence.n} differs from n={strategy.n}"
    )
    _close(strategy, replay(recurrence, z), strategy.solve(z), "rows of recurrence() = solve(z)")


def check_serialized(strategy: Strategy) -> None:
    """JSON and back gives the same type, the same n and the same numbers, bit for bit."""
    text = json.dumps(_serialize.encode(strategy), allow_nan=False)
    again = _serialize.decode(json.loads(text))
    _require(strategy, type(again) is type(strategy), f"JSON gave back a {type(again).__name__}")
    _require(strategy, again.n == strategy.n, f"JSON gave back n={again.n}, not {strategy.n}")
    _require(strategy, bool((again.to_dense() == strategy.to_dense()).all()), "JSON changed a number of C")
    _require(strategy, json.dumps(_serialize.encode(again)) == text, "JSON of what JSON gave back differs")


def check_refusals(strategy: Strategy) -> None:
    """Arguments of the wrong length, and blocks that do not exist, are refused with ValueError."""
    n = strategy.n
    wrong: list[tuple[str, object]] = [
        (f"multiply of {n + 1} rows", lambda: strategy.multiply(np.zeros(n + 1))),
        (f"solve of {n + 1} rows", lambda: strategy.solve(np.zeros((n + 1, 2)))),
        ("multiply of a scalar", lambda: strategy.multiply(0.0)),
        ("truncate(0)", lambda: strategy.truncate(0)),
        (f"truncate({n + 1})", lambda: strategy.truncate(n + 1)),
    ]
    for what, call in wrong:
        try:
            call()  # type: ignore[operator]
        except ValueError:
            continue
        raise ContractError(f"{strategy!r}: {what} is not refused with ValueError")


def replay(recurrence: Recurrence, z: Array) -> Array:
    """The rows x_t that a recurrence makes of fresh rows z_t, in plain NumPy: what a noise stream must emit.

    Args:
        recurrence: Autoregressive, MovingAverage or Buffered.
        z: shape (n, ...).
    """
    out = np.zeros_like(z)
    past: list[Array] = []  # newest first
    memory = np.zeros((0, *z.shape[1:]))
    for t, fresh in enumerate(z):
        s = recurrence.local(t)
        if s == 0:
            past = []
        match recurrence:
            case Autoregressive():
                row = _row_of(recurrence, s)
                known = sum((c * x for c, x in zip(row[1:], past, strict=False)), np.zeros_like(fresh))
                x = (fresh - known) / row[0]
                past = [x, *past][: recurrence.window - 1]
            case MovingAverage():
                row = _row_of(recurrence, s)
                past = [fresh, *past][: recurrence.window]
                x = sum((c * y for c, y in zip(row, past, strict=True)), np.zeros_like(fresh))
            case Buffered():
                if s == 0:
                    memory = np.zeros((len(recurrence.scale), *fresh.shape))
                x = fresh - np.tensordot(recurrence.scale, memory, axes=1)
                decay = recurrence.decay.reshape((-1,) + (1,) * fresh.ndim)
                memory = decay * memory + x
            case _:
                raise ContractError(f"{type(recurrence).__name__} is no recurrence a noise stream knows")
        out[t] = recurrence.gain(t) * x
    return out


def _row_of(recurrence: Autoregressive | MovingAverage, s: int) -> Array:
    row = np.asarray(recurrence.row(s))
    if len(row) != min(recurrence.window, s + 1):
        raise ContractError(f"row({s}) has {len(row)} entries, not min(window={recurrence.window}, {s + 1})")
    return row


def _require(strategy: Strategy, held: bool, rule: str) -> None:
    if not held:
        raise ContractError(f"{strategy!r}: {rule}")


def _close(
    strategy: Strategy, found: object, expected: object, rule: str, *, scale: float | None = None
) -> None:
    a, b = np.asarray(found), np.asarray(expected)
    _require(strategy, a.shape == b.shape, f"{rule}: shape {a.shape}, expected {b.shape}")
    size = float(max(np.abs(b).max(initial=0.0), 1e-300)) if scale is None else scale
    error = float(np.abs(a - b).max(initial=0.0))
    _require(strategy, error <= ROUNDING * size, f"{rule}: off by {error} (largest entry {size})")
