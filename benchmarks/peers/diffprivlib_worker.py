"""diffprivlib's linear models behind a pipe: one JSON task a line in, one JSON score a line out.

Probabilities of the test part, and coefficients for features scaled to [-1, 1], come with that of classes.

Runs in an environment of its own, with diffprivlib and scikit-learn below 1.6 (diffprivlib 0.6.6 imports
names that later versions do not have). A task names an .npz file with the rows of a split, and epsilon; delta
is 0 there.
"""

from __future__ import annotations

import json
import sys
import warnings
from typing import Any

import numpy as np
from diffprivlib.models import LinearRegression, LogisticRegression

warnings.simplefilter("ignore")


def score(task: dict[str, Any]) -> dict[str, Any]:
    with np.load(task["file"]) as data:
        train, test, y, truth = (data[name] for name in ("train", "test", "y", "truth"))
        low, high, norm = data["low"], data["high"], float(data["norm"])
    if task["kind"] == "numbers":
        bounds = (float(task["target_low"]), float(task["target_high"]))
        model = LinearRegression(epsilon=task["epsilon"], bounds_X=(low, high), bounds_y=bounds)
        found = np.clip(model.fit(train, y).predict(test), *bounds)
        rest = np.square(truth - found).sum() / np.square(truth - truth.mean()).sum()
        return {"score": float(1.0 - rest)}
    scaled = [(2 * x - low - high) / (high - low) for x in (train, test)]
    model = LogisticRegression(epsilon=task["epsilon"], data_norm=norm, max_iter=1000).fit(scaled[0], y)
    return {
        "score": float((model.predict(scaled[1]) == truth).mean()),
        "probabilities": model.predict_proba(scaled[1]).tolist(),
        "coefficients": model.coef_.tolist(),
    }


if __name__ == "__main__":
    for line in sys.stdin:
        try:
            print(json.dumps(score(json.loads(line))), flush=True)
        except Exception as error:  # a peer's failure is a result too
            print(json.dumps({"error": repr(error)}), flush=True)
