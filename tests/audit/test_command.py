"""`anechoic audit MECHANISM.json`."""

import json
from unittest.mock import patch

import pytest

from anechoic import cli
from anechoic.noise import NoiseStream
from tests.audit.faults import banded, fixed


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mechanism.json"
    path.write_text(fixed(banded()).to_json(), encoding="utf-8")
    return path


def run(capsys, *arguments):
    code = cli.main(["audit", *map(str, arguments)])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


@pytest.mark.parametrize("more", [(), ("--training",)])
@pytest.mark.slow
def test_a_sound_mechanism_passes(capsys, file, tmp_path, more):
    saved = tmp_path / "report.json"
    code, out, err = run(
        capsys, file, "--canaries", 64, "--seed", 1, "--confidence", 0.9999, "--json", saved, *more
    )
    assert (code, err) == (0, "")
    assert "no violation found, which is no proof" in out and f"Saved: {saved}" in out
    assert ("through PrivacyEngine" in out) == bool(more)
    record = json.loads(saved.read_text(encoding="utf-8"))
    assert record["violated"] is False and record["confidence"] == 0.9999


def test_a_refuted_one_has_an_exit_code_of_its_own(capsys, file):
    real = NoiseStream.__init__

    def quieter(self, *args, std, **options):
        real(self, *args, std=std / 2, **options)

    with patch.object(NoiseStream, "__init__", quieter):
        code, out, _ = run(capsys, file, "--canaries", 200, "--seed", 1)
    assert code == 1
    assert "VIOLATED" in out


def test_what_cannot_be_audited_is_said_in_one_line(capsys, file, tmp_path):
    code, out, err = run(capsys, file, "--canaries", 4)
    assert (code, out) == (2, "")
    assert err.startswith("anechoic audit: canaries=4 must be at least 16") and err.count("\n") == 1
    code, _, err = run(capsys, tmp_path / "none.json")
    assert code == 2 and "none.json" in err
    other = tmp_path / "other.json"
    other.write_text('{"endless_format": 1}', encoding="utf-8")
    code, _, err = run(capsys, other)
    assert code == 2 and "without horizon" in err
