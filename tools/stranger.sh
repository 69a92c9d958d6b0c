#!/usr/bin/env bash
# A stranger's five minutes: an empty environment, the wheel, data that came with scikit-learn, a model of their
# own, and the statement of what it guarantees. Times each stage, and fails where all take more than five minutes.
#   tools/stranger.sh [WHEEL] [PYTHON]
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
wheel=$(realpath "${1:-$(ls "$here"/dist/anechoic-*.whl)}")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
stage() { echo "$SECONDS s: $1"; }

stage "an empty environment"
"${2:-python3}" -m venv env
stage "pip install 'anechoic[sklearn]'"
env/bin/python -m pip install -qq --disable-pip-version-check "$wheel[sklearn]"
stage "their script"
cat > mine.py <<'PYTHON'
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split

from anechoic.linear import LogisticRegression

X, y = load_breast_cancer(return_X_y=True)
X = X[:, :10]  # means of radius, texture, perimeter, area, …: their ranges are common knowledge
low, high = [5, 5, 40, 100, 0, 0, 0, 0, 0, 0], [30, 40, 200, 2600, 0.2, 0.4, 0.5, 0.25, 0.4, 0.1]
train_X, test_X, train_y, test_y = train_test_split(X, y, random_state=0)
model = LogisticRegression(epsilon=2, feature_bounds=(low, high), classes=[0, 1]).fit(train_X, train_y)
print(model.statement())
print(f"accuracy on {len(test_y)} that were held out: {model.score(test_X, test_y):.3f}, at ε = {model.epsilon_:.3g}")
PYTHON
env/bin/python mine.py | tee said.txt
grep -q "Privacy unit:" said.txt
stage "a model and its statement"
[ "$SECONDS" -le 300 ] || { echo "that took more than five minutes" >&2; exit 1; }
