"""Audits through the whole training path: sound mechanisms pass, and each seeded fault is caught."""

import pytest

from anechoic.torch import audit_training
from tests.audit.faults import FAULTS, MECHANISMS, banded, fixed, run


@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.slow
def test_every_kind_of_mechanism_passes(name):
    report = run(MECHANISMS[name], label=name, resume_at=11, confidence=0.999)
    assert not report.violated, str(report)
    assert report.finding("covariance").power > 0.999


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
@pytest.mark.slow
def test_every_fault_is_caught_and_without_it_nothing_is(fault):
    broken = run(fault.mechanism, fault.inject, number=1, **fault.options)
    for name in fault.caught_by:
        assert broken.finding(name).violated, str(broken)
    sound = run(fault.mechanism, label=fault.name, confidence=0.999, **fault.options)
    assert not sound.violated, str(sound)


@pytest.mark.slow
def test_keys_make_an_audit_repeatable():
    first, second = (run(lambda: fixed(banded()), canaries=64, number=3) for _ in range(2))
    assert first.to_json() == second.to_json()
    fresh = audit_training(fixed(banded()), canaries=64)
    assert fresh.finding("canary fit").found != first.finding("canary fit").found


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"resume_at": 24}, ValueError, "resume_at=24 must lie between 1 and n-1=23"),
        *(({"resume_at": odd}, ValueError, "resume_at=") for odd in (0, True, [True, 5], 2.5)),
        ({"canaries": 8}, ValueError, "canaries=8"),
    ],
)
def test_what_is_refused(options, error, message):
    with pytest.raises(error, match=message):
        audit_training(fixed(banded()), **options)
