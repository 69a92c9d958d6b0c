"""The one device of a private run inside Lightning, which is chosen by the Trainer's arguments."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch.strategies import SingleDeviceStrategy

from anechoic.errors import UnsupportedError


class OneDevice(SingleDeviceStrategy):
    """Told by the Trainer which devices there are, as a strategy with these two properties is.

    Raises:
        UnsupportedError: when it is told of several.
    """

    def __init__(self) -> None:
        super().__init__()
        self._devices: list[Any] = []

    @property
    def parallel_devices(self) -> list[Any]:
        return self._devices

    @parallel_devices.setter
    def parallel_devices(self, devices: list[Any]) -> None:
        if len(devices) > 1:
            raise UnsupportedError(
                f"Trainer(devices=…) gives {len(devices)}: a private run has one process and one device. Set"
                " devices=1."
            )
        self._devices, self._root_device = devices, torch.device(devices[0])

    @property
    def num_nodes(self) -> int:
        return 1

    @num_nodes.setter
    def num_nodes(self, nodes: int) -> None:
        if nodes > 1:
            raise UnsupportedError(
                f"Trainer(num_nodes={nodes}): a private run has one process and one device. Set num_nodes=1."
            )
