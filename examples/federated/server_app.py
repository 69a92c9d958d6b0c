"""What the server runs: `CorrelatedFedOpt` where `FedAvg` would stand."""

from fashion import Net, accuracy, initial_model
from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp import ServerApp

from anechoic.federated import SGD, MinSeparation
from anechoic.flower import CorrelatedFedOpt, Partitions, PublicKeys

app = ServerApp()


@app.main()
def main(grid, context):
    """Train, print the statement, and the accuracy on images that belong to no client."""
    config = context.run_config
    strategy = CorrelatedFedOpt(
        identity=PublicKeys() if config["identity"] == "public-key" else Partitions(),
        policy=MinSeparation(config["separation"]),
        rounds=config["rounds"],
        population=config["population"],
        clients_per_round=config["clients-per-round"],
        epsilon=config["epsilon"],
        clip_norm=config["clip-norm"],
        optimizer=SGD(config["server-lr"]),
        state=config["state"] or None,
    )

    def evaluate(server_round, arrays):
        if server_round % 10 and server_round != config["rounds"]:
            return None
        model = Net()
        model.load_state_dict(arrays.to_torch_state_dict())
        return MetricRecord({"accuracy": accuracy(model, config)})

    model = initial_model(config["seed"])
    result = strategy.start(grid, ArrayRecord(model.state_dict()), evaluate_fn=evaluate)
    print(strategy.statement())
    print(result)
