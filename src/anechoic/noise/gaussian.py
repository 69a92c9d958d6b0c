"""Addresses of fresh rows: z_t is made of blocks, each from a generator filled by SHAKE-256.

Row t of Z is a function of (key, step t, shard) for a given backend, precision and length: it can be made
again at any time and in any order. It is cut into blocks of `BLOCK` entries. Block k comes from a generator
of its own, whose state is derived from (key, "noise", step, shard, k, precision), so blocks can be drawn by
several threads and the number of threads leaves no trace in the row.

The whole 256-bit key enters every state: Philox takes 256 bits (128 of key, 128 of counter), the Mersenne
Twister of PyTorch all its 19,937. Both generators pass as random to any analysis that does not set out to
break them, but neither is a cryptographic one: who knows the bare noise in a few thousand entries of a block
can compute the rest of that block, though nothing of any other block, row or key. Entries are floating-point
numbers: PyTorch's float32 ones, made from 24 random bits each, end at 5.8 standard deviations. Attacks on
either belong to what the guarantee does not cover.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from anechoic.noise.keys import derive

# Entries: 1 MiB of float32, which stays in the cache of one core. Another value is another stream.
BLOCK = 2**18
DOMAIN = "noise"


def seed_of(key: bytes, step: int, shard: int, block: int, *, bits: int, size: int) -> bytes:
    """Seed of `size` bytes for one block of a fresh row of `bits`-bit numbers."""
    return derive(key, DOMAIN, step, shard, block, bits, size=size)


def in_blocks(work: Callable[[int, slice], None], dimension: int, threads: int) -> None:
    """Call work(k, slice of block k) for every block of a row, on at most `threads` threads."""
    parts = [slice(start, min(start + BLOCK, dimension)) for start in range(0, dimension, BLOCK)]
    if min(threads, len(parts)) <= 1:
        for k, part in enumerate(parts):
            work(k, part)
        return
    # made per call: a lasting pool would not survive a fork, and costs only 0.1 ms for rows this long
    with ThreadPoolExecutor(min(threads, len(parts))) as pool:
        for _ in pool.map(work, range(len(parts)), parts):
            pass


def available_threads() -> int:
    """Threads that this process may use: OMP_NUM_THREADS if it is set, else its share of the cores."""
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    if wanted.isdigit() and int(wanted) > 0:
        return int(wanted)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
