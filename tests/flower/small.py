"""A federation of a few clients with a tiny model, and the same rounds without Flower."""

import numpy as np
from flwr.app import Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

import anechoic as an
from anechoic.federated import MinSeparation, Server
from anechoic.federated.grid import to_grid
from anechoic.flower import CorrelatedFedOpt, Partitions, clipped_update_mod
from anechoic.flower.records import arrays_of, record_of
from anechoic.sampling import External
from anechoic.strategies import BandedToeplitz
from tests.flower.in_process import Fate, InProcessGrid

ROUNDS = 6
CLIENTS = 12
PER_ROUND = 3
CLIP = 1.5
KEY = bytes(range(32))
POLICY = MinSeparation(3)


def initial():
    return {
        "w": np.arange(6, dtype=np.float32).reshape(2, 3),
        "scale": np.array(2.5),
        "seen": np.array(7, np.int64),
    }


def mechanism(rounds=ROUNDS, policy=POLICY, per_round=PER_ROUND, unit="client"):
    strategy = BandedToeplitz(rounds, [1.0, 0.5, 0.25])
    sampling = External(policy.participation, per_round, rounds)
    return an.calibrate(
        strategy, sampling=sampling, epsilon=8.0, delta=1e-5, clip_norm=CLIP, unit=unit, grid_bits=24
    )


def update(partition, server_round):
    """What a client's training adds to the model: large for every third client, so that it is clipped."""
    rng = np.random.default_rng([partition, server_round])
    size = 30.0 if partition % 3 == 0 else 0.3
    return {"w": size * rng.normal(size=(2, 3)), "scale": size * rng.normal(size=())}


def trained(arrays, partition, server_round):
    """The arrays after training, as float32 and float64 as they came; the counter counts on."""
    change = update(partition, server_round)
    return {
        "w": arrays["w"] + change["w"].astype(np.float32),
        "scale": np.asarray(arrays["scale"] + change["scale"]),
        "seen": np.asarray(arrays["seen"] + 100),
    }


def client_app(training=None, mod=clipped_update_mod, mods=None):
    app = ClientApp()

    @app.train(mods=[mod] if mods is None else mods)
    def train(message, context):
        config = message.content["config"]
        partition = context.node_config["partition-id"]
        if training is not None:
            return training(message, context)
        new = trained(arrays_of(message.content["arrays"]), partition, config["server-round"])
        metrics = MetricRecord({"num-examples": 1000 * (partition + 1), "loss": float(partition), "age": 41})
        return Message(RecordDict({"arrays": record_of(new), "metrics": metrics}), reply_to=message)

    return app


def strategy(**options):
    given = {
        "identity": Partitions(),
        "policy": POLICY,
        "clients_per_round": PER_ROUND,
        "clip_norm": CLIP,
        "exclude": ["seen"],
        "key": KEY,
        "patience": 0.0,
    }
    given.update(options)
    if "mechanism" not in given and "epsilon" not in given:
        given["mechanism"] = mechanism(
            policy=given["policy"],
            per_round=given["clients_per_round"],
            unit=getattr(given["identity"], "unit", "client"),
        )
    return CorrelatedFedOpt(**given)


def grid(app=None, nodes=CLIENTS, who=False, **options):
    """A grid; with `who` the question who a node is reaches it whatever its fate."""
    if who:
        fate = options["fate"]
        options["fate"] = lambda message, place: (
            Fate.ANSWERED if message.content["anechoic"]["stage"] == "who" else fate(message, place)
        )
    return InProcessGrid(app or client_app(), nodes, **options)


def models_without_flower(rounds=ROUNDS, answers=lambda client, step: True, **options):
    """The same run by the framework-free server: models after each round."""
    options = {"mechanism": mechanism(), "policy": POLICY, "clients_per_round": PER_ROUND, **options}
    server = Server(initial(), exclude=["seen"], key=KEY, **options)
    models = []
    while server.step < rounds:
        asked = server.ask(range(CLIENTS))
        for client in asked.clients:
            if answers(client, asked.step):
                asked.add(client, vector(asked.model, client, asked.step + 1, server.grid_bits))
        if server.close(asked).released:
            models.append(server.model)
    return models


def vector(model, client, server_round, bits):
    """A client's update on the grid, written out."""
    new = trained(model, client, server_round)
    names = ("w", "scale")
    difference = [np.ravel(new[name].astype(float) - model[name].astype(float)) for name in names]
    return to_grid(np.concatenate(difference), clip_norm=CLIP, grid_bits=bits)


def run(found=None, over=None, rounds=None, **arguments):
    """Models after each round of a run over Flower's messages, and the strategy."""
    found = strategy() if found is None else found
    over = grid() if over is None else over
    models = []

    def evaluate(server_round, arrays):
        if server_round:
            models.append(arrays_of(arrays))
        return MetricRecord({"round": server_round})

    found.start(over, record_of(initial()), rounds, evaluate_fn=evaluate, **arguments)
    return models, found


def same(models, others):
    assert len(models) == len(others)
    for model, other in zip(models, others, strict=True):
        assert model.keys() == other.keys()
        for name in model:
            assert model[name].dtype == other[name].dtype
            np.testing.assert_array_equal(model[name], other[name])
