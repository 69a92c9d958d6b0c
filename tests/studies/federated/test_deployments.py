import pytest

from studies.federated import deployments
from studies.federated.deployments import DEPLOYMENTS, deployments_text, predicted


@pytest.mark.slow  # 15 s
def test_the_published_losses():
    # GOLDEN: arXiv 2408.08868, n = 2052, b = 342, k = 6, and arXiv 2601.22334: ours may be better
    found = {(r.deployment.rounds, r.kind, r.loss): r.found for r in predicted()}
    assert found[2052, "independent", "rms"] == pytest.approx(78.48, abs=5e-3)
    assert found[2052, "tree", "rms"] == pytest.approx(12.47, abs=5e-3)
    assert found[2052, "blt", "rms"] == pytest.approx(9.1713, abs=1e-3)  # printed 9.33
    assert found[2052, "blt", "max"] == pytest.approx(10.734, abs=1e-2)  # printed 10.79
    assert found[2052, "banded", "rms"] == pytest.approx(8.657, abs=0.01)  # BandMF, columns free: 8.60
    assert found[3900, "independent", "rms"] == pytest.approx(83.84, abs=1e-2)
    assert found[3900, "blt", "rms"] == pytest.approx(8.14, abs=0.01)
    assert found[2000, "blt", "max"] == pytest.approx(9.10, abs=0.01)  # unscaled: 9.43


def test_the_tree_and_independent_noise_of_a_federation_of_keyboards():
    rows = predicted(DEPLOYMENTS[:1], kinds=("independent", "tree"), losses=("rms",))
    for row in rows:
        assert row.found == pytest.approx(row.printed, abs=5e-3)


def test_the_table_has_what_is_printed_beside_what_is_found(monkeypatch):
    few = predicted(DEPLOYMENTS[:1], kinds=("independent",))
    monkeypatch.setattr(deployments, "predicted", lambda: few)
    *lines, legend = deployments_text().splitlines()
    (row,) = [line for line in lines if "keyboards" in line]
    assert row.split(" | ")[1:] == ["2052", "342", "6", "independent noise", "78.48", "78.48", "110.96", " |"]
    assert "Toeplitz" in legend and "8.60 is of a banded matrix whose columns are all free" in legend
    for word in lines[0].strip("| ").split(" | ")[1:]:
        assert word in legend or word == "noise", f"{word}: a column that nobody explains"
