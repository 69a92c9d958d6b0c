"""The server of the test: writes a line for each round, and the model it is at."""

import json
import time

import numpy as np
from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp import ServerApp

from anechoic.federated import MinSeparation
from anechoic.flower import CorrelatedFedOpt, Partitions, PublicKeys

app = ServerApp()


@app.main()
def main(grid, context):
    config = context.run_config
    strategy = CorrelatedFedOpt(
        identity=PublicKeys() if config["identity"] == "public-key" else Partitions(),
        policy=MinSeparation(config["separation"]),
        rounds=config["rounds"],
        population=config["nodes"],
        clients_per_round=config["per-round"],
        epsilon=50.0,
        delta=1e-3,
        clip_norm=1.0,
        state=config["state"] or None,
        patience=config["patience"],
        min_available=config["nodes"] - 2,
    )

    def written(server_round, arrays):
        line = {
            "round": server_round,
            "at": time.time(),
            "model": arrays.to_numpy_ndarrays()[0].tolist(),
            "refused": dict(strategy.report().refused),
        }
        with open(config["report"], "a") as file:
            print(json.dumps(line), file=file, flush=True)
        return MetricRecord({"round": server_round})

    strategy.start(grid, ArrayRecord([np.zeros(4)]), timeout=config["timeout"], evaluate_fn=written)
    with open(config["report"], "a") as file:
        ledger = strategy.report().ledger
        summary = {
            "stopped": strategy.stopped,
            "statement": strategy.statement(),
            "nearest": ledger.nearest,
            "participations": ledger.participations,
            "clients": ledger.clients,
        }
        print(json.dumps(summary), file=file, flush=True)
