"""Federated training on Flower with privacy for whole clients.

    strategy = CorrelatedFedOpt(identity=Partitions(), …)        # where FedAvg(…) stood
    result = strategy.start(grid, initial_arrays)

and at the clients `@app.train(mods=[clipped_update_mod])`. Everything that decides a guarantee is in
`anechoic.federated`; this folder translates between it and Flower's messages. Needs `anechoic[flower]`.
"""

import anechoic.flower.require_flower  # noqa: F401  first: it says which extra is missing
from anechoic.flower.client import ClippedUpdate, clipped_update, clipped_update_mod
from anechoic.flower.identity import Labels, Partitions, PublicKeys
from anechoic.flower.strategy import CorrelatedFedOpt

__all__ = [
    "ClippedUpdate",
    "CorrelatedFedOpt",
    "Labels",
    "Partitions",
    "PublicKeys",
    "clipped_update",
    "clipped_update_mod",
]
