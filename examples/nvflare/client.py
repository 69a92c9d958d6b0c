"""What a hospital runs: local training of a logistic model, whose update alone leaves it. No noise here."""

import numpy as np
import nvflare.client as flare


def patients(name, rows=200, inputs=8):
    """Stand-in for a hospital's own table: rows, and a diagnosis that follows from their first columns."""
    rng = np.random.default_rng([*name.encode()])
    x = rng.standard_normal((rows, inputs))
    return x, (x[:, 0] - 0.5 * x[:, 1] + 0.3 * rng.standard_normal(rows) > 0).astype(float)


def train(model, x, y, rate=0.5, passes=5):
    weight, bias = np.array(model["weight"]), np.array(model["bias"])
    for _ in range(passes):
        error = 1 / (1 + np.exp(-(x @ weight + bias))) - y
        weight, bias = weight - rate * x.T @ error / len(x), bias - rate * error.mean(keepdims=True)
    return {"weight": weight, "bias": bias}


def main():
    flare.init()
    x, y = patients(flare.get_site_name())
    while flare.is_running():
        given = flare.receive()
        if given is None:
            break
        after = train(given.params, x, y)
        update = {name: after[name] - given.params[name] for name in after}
        meta = {"round": given.meta.get("round"), "client_name": flare.get_site_name()}
        flare.send(flare.FLModel(params=update, params_type=flare.ParamsType.DIFF, meta=meta))


if __name__ == "__main__":
    main()
