"""Workflow of an NVFlare server: `anechoic.federated.Server` asks, clips, adds up, adds noise, and remembers.

Hospitals are few and each takes part again and again, so their participation is `MinSeparation(1)`: all
rounds. What is protected is all that one hospital holds.
"""

from pathlib import Path

import numpy as np
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.workflows.model_controller import ModelController

from anechoic import federated


class PrivateRounds(ModelController):
    """Rounds of a federation with correlated noise.

    Args:
        rounds, per_round: how many, and the clients whose replies a round takes, which its sum is divided by.
        clients: how many there are.
        epsilon, delta: for one client, over all rounds.
        clip_norm: of an update, the difference of a model after and before local training.
        inputs: entries of a row, of the logistic model that this example trains.
        state: folder of the run, by which it goes on after a restart.
    """

    def __init__(self, rounds, per_round, clients, epsilon, delta, clip_norm, inputs, state):
        super().__init__(persistor_id="")
        # NVFlare writes a job down by attributes that are named as the arguments
        self.rounds, self.per_round, self.clients, self.inputs = rounds, per_round, clients, inputs
        self.epsilon, self.delta, self.clip_norm, self.state = epsilon, delta, clip_norm, state

    def run(self):
        rule = federated.MinSeparation(separation=1)
        initial = {"weight": np.zeros(self.inputs), "bias": np.zeros(1)}
        mechanism = federated.plan_rounds(
            rounds=self.rounds,
            clients=self.clients,
            clients_per_round=self.per_round,
            policy=rule,
            epsilon=self.epsilon,
            delta=self.delta,
            clip_norm=self.clip_norm,
            dimension=self.inputs + 1,
        )
        server = federated.Server(
            initial,
            mechanism=mechanism,
            policy=rule,
            clients_per_round=self.per_round,
            state=Path(self.state),
        )
        while not server.finished and not self.abort_signal.triggered:
            there = [client.name for client in self.engine.get_clients()]
            asked = server.ask(there)  # charged, and on disk, before anything is sent
            data = FLModel(params=dict(asked.model), params_type=ParamsType.FULL, current_round=asked.step)
            data.meta["round"] = asked.config["round"]
            for reply in self.send_model_and_wait(
                targets=list(asked.clients), data=data, min_responses=len(asked.clients), timeout=60
            ):
                name, params = reply.meta["client_name"], reply.params
                known = reply.meta.get("round") == asked.config["round"] and params
                asked.add(name, params if known else "no update of this round")
            closed = server.close(asked)
            self.info(f"round {closed.step}: {closed.counted} of {closed.asked} counted")
        folder = Path(self.state)
        np.savez(folder.parent / "model.npz", **server.model)
        (folder.parent / "statement.txt").write_text(server.statement())
