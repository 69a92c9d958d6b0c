"""A small record with its mechanisms, made by hand: what the pages of these tests show."""

import numpy as np

from anechoic.mechanism.calibrate import calibrate
from anechoic.sampling import FixedOrder
from anechoic.strategies import BandedToeplitz, ColumnNormalized, Identity
from anechoic.strategies.toeplitz import square_root_coefficients
from anechoic.workloads import prefix_sum

RATES = [0.25, 0.5, 1.0]


def example(steps=200, epsilons=(0.1, 0.3, 1.0), title="late flights <&> an example"):
    """(record, mechanisms) of a study with three private settings and two runs without privacy."""
    sampling = FixedOrder(examples=steps * 256, batch_size=256, epochs=1)
    coefficients = square_root_coefficients(prefix_sum(steps), min(64, steps))
    planned = ColumnNormalized(BandedToeplitz(steps, coefficients))
    arms, comparisons, mechanisms = [], [], {}
    for kind, mean in (("clipped", 0.702), ("plain", 0.731)):
        arms.append(_arm(kind, None, [mean - 0.02, mean - 0.01, mean], 0.0, 1))
    for i, epsilon in enumerate(epsilons):
        for kind, strategy, mean in (("independent", Identity(steps), 0.6), ("planned", planned, 0.67)):
            arm = _arm(kind, epsilon, [mean + 0.03 * i - 0.01, mean + 0.03 * i, mean + 0.02 * i], 0.003, 5)
            mechanism = calibrate(strategy, sampling=sampling, epsilon=epsilon, delta=1e-6)
            mechanisms[arm["name"]] = mechanism
            arm["mechanism"] = {
                "file": f"{arm['name']}.json",
                "fingerprint": mechanism.fingerprint,
                "reason": "Chosen: the least predicted error.",
            }
            arms.append(arm)
        comparisons.append(
            {
                "scheme": "fixed",
                "epsilon": epsilon,
                "independent": arms[-2]["name"],
                "planned": arms[-1]["name"],
                "gain": arms[-1]["best"]["mean"] - arms[-2]["best"]["mean"],
                "gain_error": 0.002,
            }
        )
    record = {
        "title": title,
        "command": "anechoic demo --out 'a & b'",
        "created": "2026-01-01T00:00:00+00:00",
        "seconds": 123.4,
        "jobs": 2,
        "machine": {"python": "3.11", "system": "Linux", "processors": 2, "versions": {"anechoic": "0.1.0"}},
        "task": {
            "description": "327,346 flights in order of departure",
            "metric": "AUC",
            "metric_long": "predict-then-train AUC after the first tenth of the steps",
            "parameters": 92,
        },
        "steps": steps,
        "delta": 1e-6,
        "clip_norm": 1.0,
        "learning_rates": RATES,
        "seeds": [0, 1, 2, 3, 4],
        "arms": arms,
        "comparisons": comparisons,
    }
    return record, mechanisms


def _arm(kind, epsilon, means, error, seeds):
    name = f"{kind}-fixed" + ("" if epsilon is None else f"-eps{epsilon:g}")
    words = {"clipped": "not private", "plain": "not private, not clipped"}
    words |= {"independent": "independent noise", "planned": "planned mechanism"}
    top = int(np.argmax(means))
    return {
        "name": name,
        "title": words[kind] + ("" if epsilon is None else f", ε = {epsilon:g}"),
        "kind": kind,
        "scheme": "fixed",
        "epsilon": epsilon,
        "rates": [{"learning_rate": r, "mean": m, "error": error} for r, m in zip(RATES, means, strict=True)],
        "best": {
            "learning_rate": RATES[top],
            "mean": means[top],
            "error": error,
            "metrics": [means[top]] * seeds,
            "edge": {0: "lowest", 2: "highest"}.get(top, ""),
        },
        "runs": [{}] * seeds,
    }
