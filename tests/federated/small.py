"""A small run, and what its releases must be by brute force."""

import numpy as np

import anechoic as an
from anechoic import federated
from anechoic.mechanism.rows import NoiseRows

KEY = bytes(range(32))
CLIP, BITS, ROUNDS = 0.5, 24, 9


def small_mechanism(policy, per_round, **options):
    sampling = an.sampling.External(policy.participation, per_round, steps=ROUNDS)
    strategy = options.pop("strategy", an.strategies.BandedToeplitz(ROUNDS, [1.0, 0.5, 0.25]))
    settings = {"epsilon": 2.0, "delta": 1e-6, "clip_norm": CLIP, "unit": "client", "grid_bits": BITS}
    return an.calibrate(strategy, sampling=sampling, **{**settings, **options})


def small_model():
    return {
        "w": np.array([[1.0, 2.0], [3.0, -4.0]], np.float32),
        "b": np.array(0.5, np.float64),
        "seen": np.array(7),
    }


def small_server(policy=None, per_round=3, **options):
    policy = federated.MinSeparation(3, 3) if policy is None else policy
    settings = {"key": KEY, "exclude": ["seen"], "mechanism": small_mechanism(policy, per_round)}
    return federated.Server(
        small_model(), policy=policy, clients_per_round=per_round, **{**settings, **options}
    )


def update_of(client, step):
    """What a client sends: a function of who it is and of the step, norms on both sides of the clip norm."""
    rng = np.random.default_rng([int(client), step])
    size = rng.choice([0.01, 1.0, 100.0])
    return {"w": (size * rng.normal(size=(2, 2))).astype(np.float32), "b": np.array(size * rng.normal())}


def vector_of(client, step):
    update = update_of(client, step)
    return np.concatenate([update["w"].ravel(), update["b"].ravel()]).astype(np.float64)


def run_round(server, available, silent=0, refused=0):
    """One round in which all but the first `silent` answer, and so many strangers."""
    asked = server.ask(available)
    for client in asked.clients[silent:]:
        assert asked.add(client, update_of(client, asked.step)) is None
    for _ in range(refused):
        assert asked.add("nobody", None) is not None
    return asked, server.close(asked)


class Recorder:
    """The noise rows that a server takes, in order."""

    def __init__(self, monkeypatch):
        self.rows = []
        real = NoiseRows.next

        def recorded(rows):
            found = real(rows)
            self.rows.append(found.copy())
            return found

        monkeypatch.setattr(NoiseRows, "next", recorded)
