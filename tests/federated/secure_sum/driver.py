"""A round carried by function calls."""

import numpy as np

from anechoic.federated.secure_sum import Stage, SumClient, SumServer
from anechoic.federated.secure_sum.messages import Refused

GRID_BITS = 16


def vectors_for(count, dimension, seed=0, grid_bits=GRID_BITS):
    """Vectors of both signs whose 2-norm is just below the bound."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        direction = rng.standard_normal(dimension)
        direction *= 2.0**grid_bits / max(np.linalg.norm(direction), 1e-9)
        found.append(np.trunc(direction).astype(np.int64))
    return found


def new_client(dimension=5, grid_bits=GRID_BITS, context=b"", smallest_sum=2):
    """A client that takes sums of two, so that every rule can be tried with a few of them."""
    return SumClient(dimension=dimension, grid_bits=grid_bits, context=context, smallest_sum=smallest_sum)


def new_round(count, dimension=5, grid_bits=GRID_BITS, context=b"", smallest_sum=2, **arguments):
    """(server, clients): names are 0 … count - 1."""
    both = {"dimension": dimension, "grid_bits": grid_bits, "context": context, "smallest_sum": smallest_sum}
    server = SumServer(range(count), **both, **arguments)
    return server, {name: new_client(**both) for name in range(count)}


def answer(client, message, vector):
    """The client's reply; the vector is given where it is asked for."""
    return client.answer(message, vector if message["stage"] == Stage.MASKED else None)


def one_stage(server, clients, vectors, silent=()):
    """Carries the open stage's messages; the clients that fall silent are asked, and their answers lost."""
    for name, message in server.requests().items():
        reply = answer(clients[name], message, vectors[name])
        assert not isinstance(reply, Refused), (name, reply)
        if name not in silent:
            assert server.receive(name, reply) is None


def carry(server, clients, vectors, silent=None, until=None):
    """The round up to the stage `until`, or to its end; `silent` is stage → names lost from that stage on."""
    gone = set()
    while server.stage is not None and server.stage is not until:
        gone |= set((silent or {}).get(server.stage, ()))
        one_stage(server, clients, vectors, gone)
        server.advance()
    return server
