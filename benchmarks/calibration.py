"""Probabilities and coefficients of `LogisticRegression` on ten data sets: python benchmarks/calibration.py

Beside diffprivlib (`--peer` names a Python that has it) and scikit-learn, with epsilons, splits and bounds
of benchmarks/linear.py. Per cell: the log loss of the test part, where no probability counts as less than
1e-4; the calibration slope, 1 where log odds are as large as they should be (two classes only); and the
distance of the coefficients from scikit-learn's (penalty C = 1, features scaled to [-1, 1]) over the size of
those. Five sets ship in statsmodels, palmerpenguins and vega_datasets, and played no part in any choice.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
from linear import EPSILONS, Array, Data, Peer, data_sets, shown
from numpy.typing import NDArray
from sklearn import linear_model
from sklearn.model_selection import train_test_split

from anechoic.linear import LogisticRegression

LEAST = 1e-4
OURS, PEER, PLAIN = "LogisticRegression", "diffprivlib", "scikit-learn"


def other_sets() -> Iterator[Data]:
    """The five that were not looked at before, without rows that lack a value."""
    import palmerpenguins
    import statsmodels.api as sm
    import vega_datasets

    def of(name: str, table: Any, features: list[str], target: Any) -> Data:
        kept = (table[features].notna().all(axis=1) & target.notna()).to_numpy()
        _, codes = np.unique(target.to_numpy()[kept], return_inverse=True)
        return Data(name, "classes", table[features].to_numpy(np.float64)[kept], codes)

    fair, anes = sm.datasets.fair.load_pandas().data, sm.datasets.anes96.load_pandas().data
    yield of("fair", fair, [name for name in fair if name != "affairs"], fair["affairs"] > 0)
    yield of("anes96", anes, [name for name in anes if name not in ("vote", "popul")], anes["vote"])
    rand = sm.datasets.randhie.load_pandas().data
    yield of("randhie", rand, [name for name in rand if name != "mdvis"], rand["mdvis"] > 0)
    birds = palmerpenguins.load_penguins()
    lengths = [name for name in birds if name.endswith(("_mm", "_g"))]
    yield of("penguins", birds, lengths, birds["species"])
    days = vega_datasets.data.seattle_weather()
    yield of("seattle", days, ["temp_max", "temp_min", "wind"], days["precipitation"] > 0)


def fitted(data: Data, epsilon: float, seed: int, split: list[Array], peer: Peer | None) -> Iterator[Any]:
    """(arm, probabilities of the test part, coefficients for features scaled to [-1, 1])."""
    x, test, y, _ = split
    low, high = data.bounds
    model = LogisticRegression(
        epsilon, len(x) ** -1.1, feature_bounds=data.bounds, classes=np.unique(data.y), random_state=seed
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(x, y)
        plain = linear_model.LogisticRegression(max_iter=5000).fit(data.scaled(x), y)
    yield OURS, model.predict_proba(test), model.coef_ * (high - low) / 2
    if peer is not None and (found := peer.fitted(data, epsilon, split)) is not None:
        yield PEER, *found
    yield PLAIN, plain.predict_proba(data.scaled(test)), plain.coef_


def figures(chances: Array, coefficients: Array, reference: Array, truth: NDArray[Any]) -> dict[str, float]:
    held = np.clip(chances, LEAST, 1.0)
    found = {"log loss": float(-np.log(held[np.arange(len(truth)), truth]).mean()), "slope": np.nan}
    if chances.shape[1] == 2:
        odds = np.log(np.clip(chances[:, 1:], LEAST, 1 - LEAST) / np.clip(chances[:, :1], LEAST, 1 - LEAST))
        found["slope"] = float(linear_model.LogisticRegression(C=np.inf).fit(odds, truth).coef_[0, 0])
    centred = [each - each.mean(axis=0) * (len(each) > 1) for each in (coefficients, reference)]
    found["coefficients"] = float(np.linalg.norm(centred[0] - centred[1]) / np.linalg.norm(centred[1]))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--peer", metavar="PYTHON", help="a Python with diffprivlib")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    peer = Peer(options.peer) if options.peer else None
    usual = {"breast cancer", "digits", "made, 2 classes", "made, 5 classes", "flights"}
    known = [data for data in data_sets(20_000) if data.name in usual]
    for data in [*known, *other_sets()]:
        for epsilon in EPSILONS:
            found: dict[str, list[dict[str, float]]] = {}
            for seed in range(options.splits):
                split = train_test_split(data.x, data.y, test_size=0.3, random_state=seed, stratify=data.y)
                arms = list(fitted(data, epsilon, seed, split, peer))
                for arm, chances, coefficients in arms:
                    found.setdefault(arm, []).append(
                        figures(chances, coefficients, arms[-1][2], split[3].astype(int))
                    )
            cells = [f"{data.name} | {epsilon:g}"]
            for name in ("log loss", "slope", "coefficients"):
                arms_of = [arm for arm in (OURS, PEER, PLAIN) if name != "coefficients" or arm != PLAIN]
                cells += [shown([one[name] for one in found[arm]]) for arm in arms_of if arm in found]
            print(" | ".join(cells), flush=True)


if __name__ == "__main__":
    main()
