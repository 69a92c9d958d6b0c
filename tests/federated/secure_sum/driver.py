"""A round carried by function calls."""

import numpy as np

from anechoic.federated.secure_sum import Client, Refused, Server, Stage, identity_of

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


def new_round(count, dimension=5, grid_bits=GRID_BITS, context=b"", at_least=2, identities=None, **arguments):
    """(server, clients): names are 0 … count - 1; identities are private keys."""
    public = None if identities is None else dict(enumerate(identity_of(one) for one in identities))
    server = Server(
        range(count),
        dimension=dimension,
        grid_bits=grid_bits,
        context=context,
        identities=public,
        **arguments,
    )
    clients = {
        name: Client(
            dimension=dimension,
            grid_bits=grid_bits,
            at_least=at_least,
            context=context,
            identity=None if identities is None else identities[name],
            known=None if public is None else list(public.values()),
        )
        for name in range(count)
    }
    return server, clients


def one_stage(server, clients, vectors, silent=(), change=None):
    """Carries the open stage's messages; `silent` clients are asked and their answers lost."""
    for name, message in server.requests().items():
        vector = vectors[name] if message["stage"] == Stage.MASKED else None
        reply = clients[name].answer(message, vector)
        assert not isinstance(reply, Refused), (name, reply)
        if name not in silent:
            assert server.receive(name, reply if change is None else change(name, reply)) is None


def carry(server, clients, vectors, silent=None):
    """The whole round; `silent` is stage → names that fall silent from that stage on."""
    gone = set()
    while server.stage is not None:
        gone |= set((silent or {}).get(server.stage, ()))
        one_stage(server, {n: c for n, c in clients.items()}, vectors, gone)
        server.advance()
    return server
