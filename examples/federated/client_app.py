"""What a client runs. The mod makes a clipped update of what training returns; nothing else leaves."""

import torch
from fashion import Net, client_data
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp

from anechoic.flower import clipped_update_mod

app = ClientApp()


@app.train(mods=[clipped_update_mod])
def train(message, context):
    """A few steps of SGD on this client's examples."""
    config, node = context.run_config, context.node_config
    model = Net()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    images, labels = client_data(config, node["partition-id"], node["num-partitions"])
    if len(labels):
        mine = torch.randperm(len(labels))[: config["max-examples"]]
        optimizer = torch.optim.SGD(model.parameters(), lr=config["client-lr"])
        for _ in range(config["local-steps"]):
            batch = mine[torch.randint(len(mine), (config["batch-size"],))]
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict())}), reply_to=message)
