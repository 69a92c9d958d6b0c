"""The clients that were ever there, looked up once: naming those who are there now takes milliseconds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from anechoic.federated.clients import ClientId, Clients
from anechoic.federated.server import Server


class Roll:
    """What `Server.clients` made of all clients seen so far.

    Args:
        server: that asks.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._known = server.clients([])
        self._number: dict[ClientId, int] = {}

    def of(self, there: Mapping[ClientId, Any]) -> Clients:
        """The clients that are there."""
        if not there.keys() <= self._number.keys():
            self._known = self._server.clients([*self._number, *(there.keys() - self._number.keys())])
            self._number = {client: number for number, client in enumerate(self._known.ids)}
        present = np.zeros(len(self._number), bool)
        present[[self._number[client] for client in there]] = True
        return self._known.only(present)
