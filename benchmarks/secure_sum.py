"""Masked sums: processor seconds and bytes of a client and of the server, beside a plain sum of the vectors.

python benchmarks/secure_sum.py [--quick] [--grid-bits 16] [--dropped 0.1]

One process plays all parts. Only one client's answers are timed, of the others only what the server needs is
computed: their masked vectors are random words of the right size, which cost the server what real ones do.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np

from anechoic.federated.secure_sum import Stage, SumClient, SumServer

CLIENTS = (10, 50, 100, 200)
DIMENSIONS = (10**5, 10**6, 10**7)


def size_of(message: dict[str, Any]) -> int:
    """Bytes of the fields: 8 for an integer, without names and framing, which are the transport's."""
    total = 0
    for value in message.values():
        for item in value if isinstance(value, list) else [value]:
            total += len(item) if isinstance(item, bytes) else 8
    return total


def plain_sum(vector: np.ndarray, count: int, kind: str) -> float:
    """Seconds to add `count` vectors as they arrive, as words of the same ring."""
    sent = vector.astype(kind).tobytes()
    total = np.zeros(len(vector), kind)
    began = time.process_time()
    for _ in range(count):
        np.add(total, np.frombuffer(sent, kind), out=total)
    return time.process_time() - began


def one_round(count: int, dimension: int, grid_bits: int, dropped: float) -> dict[str, float]:
    """Seconds and bytes of one client, and seconds of the server, over a whole round."""
    rng = np.random.default_rng(0)
    both = {"dimension": dimension, "grid_bits": grid_bits, "smallest_sum": 7}  # of ten three may be silent
    server = SumServer(range(count), **both)
    clients = [SumClient(**both) for _ in range(count)]
    vector = rng.integers(-1, 2, dimension)  # 2-norm below sqrt(dimension)
    silent = set(range(count - int(dropped * count), count))
    found: dict[str, float] = {"client": 0.0, "server": 0.0, "up": 0, "down": 0}
    kind = f"<u{server.terms.ring_bits // 8}"
    sent = rng.integers(0, 256, dimension * np.dtype(kind).itemsize, np.uint8).tobytes()
    while (stage := server.stage) is not None:
        began = time.process_time()
        requests = server.requests()
        found["server"] += time.process_time() - began
        for name, request in requests.items():
            if name in silent and stage > Stage.SHARES:
                continue
            if stage is Stage.MASKED and name != 0:
                clients[name]._dimension = 0  # its masks are not made
                reply = {**clients[name].answer(request, vector[:0]), "vector": sent}
            else:
                began = time.process_time()
                reply = clients[name].answer(request, vector if stage is Stage.MASKED else None)
                if name == 0:
                    found["client"] += time.process_time() - began
                    found["down"] += size_of(request)
                    found["up"] += size_of(reply)
            began = time.process_time()
            refused = server.receive(name, reply)
            found["server"] += time.process_time() - began
            if refused is not None:
                raise RuntimeError(str(refused))
        began = time.process_time()
        server.advance()
        found["server"] += time.process_time() - began
    server.result()
    found["plain"] = plain_sum(vector, count, kind)
    found["plain up"] = dimension * np.dtype(kind).itemsize
    return found


def main() -> None:
    words = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=words)
    parser.add_argument("--quick", action="store_true", help="up to 10^6 entries and 50 clients")
    parser.add_argument("--grid-bits", type=int, default=16)
    parser.add_argument("--dropped", type=float, default=0.1, help="part of the clients that falls silent")
    asked = parser.parse_args()
    counts = CLIENTS[:2] if asked.quick else CLIENTS
    dimensions = DIMENSIONS[:2] if asked.quick else DIMENSIONS
    for dropped in (0.0, asked.dropped):
        print(f"\n{dropped:.0%} of the clients silent from the stage of masked vectors on\n")
        names = "clients, entries, client s, server s, plain s, server/plain, sent MB, sent/plain, read MB"
        print(f"| {names.replace(', ', ' | ')} |\n{'|---' * 9}|")
        for dimension in dimensions:
            for count in counts:
                one = one_round(count, dimension, asked.grid_bits, dropped)
                seconds = f"{one['client']:.3f} | {one['server']:.3f} | {one['plain']:.4f}"
                ratios = one["server"] / one["plain"], one["up"] / one["plain up"]
                sent = f"{one['up'] / 1e6:.2f} | {ratios[1]:.3f} | {one['down'] / 1e6:.3f}"
                print(f"| {count} | {dimension:.0e} | {seconds} | {ratios[0]:.0f} | {sent} |", flush=True)


if __name__ == "__main__":
    main()
