"""Kernels of Triton: a fresh row by ChaCha20, its sum with rows of memory and their update, in one pass.

The same operations as `device_columns`, each rounded once: the compiler is told to fuse none. Entries that no
rectangle stands for become NaN in the row, and nothing else is written of them.

Triton is imported when a kernel is first asked for. Its compiler and its interpreter look for `tl` and for
functions among the globals of this module, so that is where they are put. The compiler reads annotations,
too: there are none but its own.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import triton.language as tl

#: Blocks of the keystream that one program makes, and the warps that it has: a thread makes one block.
BLOCKS, WARPS = 128, 4
#: Runs of rows of memory that `summed` adds at most.
RUNS = 3


@functools.cache
def kernel(name: str) -> Any:
    """`drawn`, `fed` or `summed`, for launches.

    Raises:
        ImportError: where there is no Triton.
    """
    import triton
    import triton.language

    names = globals()
    names["tl"] = triton.language
    for helper in ("quarter", "variates"):
        if not hasattr(names[helper], "fn"):
            names[helper] = triton.jit(names[helper])
    return triton.jit(names[name])


def quarter(a, b, c, d):
    """A quarter round of 32-bit words, whose sums wrap."""
    a = tl.add(a, b, sanitize_overflow=False)
    d ^= a
    d = (d << 16) | (d >> 16)
    c = tl.add(c, d, sanitize_overflow=False)
    b ^= c
    b = (b << 12) | (b >> 20)
    a = tl.add(a, b, sanitize_overflow=False)
    d ^= a
    d = (d << 8) | (d >> 24)
    c = tl.add(c, d, sanitize_overflow=False)
    b ^= c
    b = (b << 7) | (b >> 25)
    return a, b, c, d


def variates(numbers, factors, table, BLOCKS: tl.constexpr):
    """Scaled variates in float64, whether they are known, and their places in the row.

    Args:
        numbers: int64: eight words of the key, the first block, entries before the row in it, entries, and
            those between one row of memory and the next: 32 bits are too few for some products with it.
        factors: float64; the first is the scale.
        table: float64, by index: see `ziggurat.Layers.steps`.
    """
    program = tl.program_id(0).to(tl.int64)
    number = tl.load(numbers + 8) + program * BLOCKS + tl.arange(0, BLOCKS).to(tl.int64)
    zero = tl.zeros([BLOCKS], tl.uint32)
    s0, s1, s2, s3 = zero + 0x61707865, zero + 0x3320646E, zero + 0x79622D32, zero + 0x6B206574
    s4 = zero + tl.load(numbers).to(tl.uint32)
    s5 = zero + tl.load(numbers + 1).to(tl.uint32)
    s6 = zero + tl.load(numbers + 2).to(tl.uint32)
    s7 = zero + tl.load(numbers + 3).to(tl.uint32)
    s8 = zero + tl.load(numbers + 4).to(tl.uint32)
    s9 = zero + tl.load(numbers + 5).to(tl.uint32)
    s10 = zero + tl.load(numbers + 6).to(tl.uint32)
    s11 = zero + tl.load(numbers + 7).to(tl.uint32)
    s12, s13 = (number & 0xFFFFFFFF).to(tl.uint32), (number >> 32).to(tl.uint32)
    x0, x1, x2, x3, x4, x5, x6, x7 = s0, s1, s2, s3, s4, s5, s6, s7
    x8, x9, x10, x11, x12, x13, x14, x15 = s8, s9, s10, s11, s12, s13, zero, zero
    for _ in range(10):
        x0, x4, x8, x12 = quarter(x0, x4, x8, x12)
        x1, x5, x9, x13 = quarter(x1, x5, x9, x13)
        x2, x6, x10, x14 = quarter(x2, x6, x10, x14)
        x3, x7, x11, x15 = quarter(x3, x7, x11, x15)
        x0, x5, x10, x15 = quarter(x0, x5, x10, x15)
        x1, x6, x11, x12 = quarter(x1, x6, x11, x12)
        x2, x7, x8, x13 = quarter(x2, x7, x8, x13)
        x3, x4, x9, x14 = quarter(x3, x4, x9, x14)
    low = tl.interleave(
        tl.interleave(tl.interleave(x0 + s0, x8 + s8), tl.interleave(x4 + s4, x12 + s12)),
        tl.interleave(tl.interleave(x2 + s2, x10 + s10), tl.interleave(x6 + s6, x14)),
    )
    high = tl.interleave(
        tl.interleave(tl.interleave(x1 + s1, x9 + s9), tl.interleave(x5 + s5, x13 + s13)),
        tl.interleave(tl.interleave(x3 + s3, x11 + s11), tl.interleave(x7 + s7, x15)),
    )
    word = ((high.to(tl.uint64) << 32) | low.to(tl.uint64)).to(tl.int64, bitcast=True)
    index = word & 2047
    value = ((word >> 10) | 1).to(tl.float64) * tl.load(table + index)
    place = program * (8 * BLOCKS) + tl.arange(0, 8 * BLOCKS).to(tl.int64) - tl.load(numbers + 9)
    return value * tl.load(factors), index < 2045, place


def drawn(numbers, factors, table, row, BLOCKS: tl.constexpr):
    """row = scale z."""
    value, _, place = variates(numbers, factors, table, BLOCKS)
    inside = (place >= 0) & (place < tl.load(numbers + 10))
    tl.store(row + place, value.to(row.dtype.element_ty), mask=inside)


def fed(numbers, factors, table, row, memory, ROWS: tl.constexpr, BLOCKS: tl.constexpr):
    """row = scale z + weights @ memory, and then memory = decays * memory + row.

    `factors` holds scale, weights and decays.
    """
    value, known, place = variates(numbers, factors, table, BLOCKS)
    inside = (place >= 0) & (place < tl.load(numbers + 10))
    own = value.to(row.dtype.element_ty)
    total, stride = tl.zeros_like(own), tl.load(numbers + 11)
    for i in range(ROWS):
        weight = tl.load(factors + 1 + i).to(row.dtype.element_ty)
        total += weight * tl.load(memory + i * stride + place, mask=inside, other=0.0)
    own += total
    tl.store(row + place, own, mask=inside)
    inside = inside & known
    for i in range(ROWS):
        decay = tl.load(factors + 1 + ROWS + i).to(row.dtype.element_ty)
        past = tl.load(memory + i * stride + place, mask=inside, other=0.0)
        tl.store(memory + i * stride + place, past * decay + own, mask=inside)


def summed(
    numbers,
    factors,
    table,
    row,
    copy,
    rows0,
    rows1,
    rows2,
    counts,
    COPIED: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """row = scale z + the sum of each run of rows; then copy = row.

    `factors` holds scale and the weights of all runs, `counts` how many rows each has.
    """
    value, known, place = variates(numbers, factors, table, BLOCKS)
    inside = (place >= 0) & (place < tl.load(numbers + 10))
    own = value.to(row.dtype.element_ty)
    first, stride = factors + 1, tl.load(numbers + 11)
    for run in tl.static_range(3):
        rows = rows0 if run == 0 else (rows1 if run == 1 else rows2)
        count = tl.load(counts + run)
        total = tl.zeros_like(own)
        for i in range(count):
            weight = tl.load(first + i).to(row.dtype.element_ty)
            total += weight * tl.load(rows + i * stride + place, mask=inside, other=0.0)
        own = tl.where(count > 0, own + total, own)
        first += count
    tl.store(row + place, own, mask=inside)
    if COPIED:
        tl.store(copy + place, own, mask=inside & known)
