"""A client that adds one to each parameter; its node's configuration says how it misbehaves."""

import random
import time

import evil
import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from anechoic.flower import clipped_update_mod

app = ClientApp()


def lying(message, context, call_next):
    """Instead of the mod: where the node is told to, rubbish, or an update far beyond the clip norm."""
    if context.node_config["behaviour"] == "rubbish":
        draw = random.Random(message.metadata.message_id)
        content = evil.no_message() if draw.random() < 0.3 else evil.contents(draw)
        return Message(content, reply_to=message)
    if message.content["anechoic"]["stage"] != "train" or context.node_config["behaviour"] != "large":
        return clipped_update_mod(message, context, call_next)
    large = ArrayRecord({"update": _array(np.full(4, 2**29, np.int32))})
    content = RecordDict({"update": large, "count": MetricRecord({"num-examples": -5})})
    return Message(content, reply_to=message)


@app.train(mods=[lying])
def train(message, context):
    """Adds one; a node that is late sleeps longer than the server waits, the first time."""
    if context.node_config["behaviour"] == "late" and "slept" not in context.state:
        context.state["slept"] = ConfigRecord()
        time.sleep(25)
    arrays = message.content["arrays"].to_numpy_ndarrays()
    return Message(RecordDict({"arrays": ArrayRecord([arrays[0] + 1])}), reply_to=message)


def _array(values):
    return ArrayRecord([values])["0"]
