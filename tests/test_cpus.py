"""Releases have the same bits on every processor. `make test-cpus` runs their rooms there too."""

import pytest

from tests.cpus import VARIANTS, different, measured
from tests.golden import digests, uses
from tests.marks import mostly_slow


@pytest.fixture(scope="module")
def expected():
    return digests()


@pytest.mark.parametrize("name", mostly_slow(VARIANTS, quick=["no-avx2"]))
@pytest.mark.slow
def test_releases_have_the_same_bits_on_another_processor(expected, name):
    features, variant = uses()["numpy"], VARIANTS[name]
    if variant.needs and variant.needs not in features:
        pytest.skip(f"this processor has no {variant.needs}")
    _, found = measured(variant, features)
    assert different(expected, found) == []
    assert len(found) > 80


def test_a_switch_without_effect_is_seen():
    seen = {"numpy": ["X86_V3"], "openblas": ["haswell"], "torch": "AVX2"}
    assert VARIANTS["haswell"].faults(seen) == []
    assert len(VARIANTS["no-avx2"].faults(seen)) == 3


def test_other_bits_are_named():
    assert different({"a": "1", "b": "2"}, {"a": "1", "b": "3", "c": "4"}) == ["b", "c"]
