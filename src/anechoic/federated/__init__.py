"""Federated learning with privacy for whole clients: a server that enforces what its mechanism promises.

    mechanism = federated.plan_rounds(rounds=200, clients=10_000, clients_per_round=100, …)
    server = federated.Server(model, mechanism=mechanism, policy=federated.MinSeparation(50), …)
    while not server.finished:
        asked = server.ask(available)          # chosen, charged and committed; then send
        for client, update in replies(asked):
            asked.add(client, update)          # checked, clipped, added up as integers
        closed = server.close(asked)           # noise, server optimiser, committed

Nothing here knows how messages travel: `anechoic.flower` sends them with Flower.
"""

from anechoic.federated.client_selection import TooFewClients
from anechoic.federated.grid import to_grid
from anechoic.federated.optimizers import SGD, FedAdam, ServerOptimizer
from anechoic.federated.participation_policy import Cohorts, MinSeparation, ParticipationPolicy
from anechoic.federated.planning import plan_rounds
from anechoic.federated.server import Server

__all__ = [
    "Cohorts",
    "MinSeparation",
    "ParticipationPolicy",
    "FedAdam",
    "SGD",
    "Server",
    "ServerOptimizer",
    "TooFewClients",
    "plan_rounds",
    "to_grid",
]
