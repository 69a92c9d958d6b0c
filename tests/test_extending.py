"""The worked strategy of docs/mechanisms.md, run as it stands; tests/test_outside_nouns.py runs the rest."""

import pytest

from anechoic import _serialize
from anechoic.planning import user_choices
from anechoic.testing._compare import ContractError
from anechoic.testing.matrix import check_varied
from tests.contracts import check_strategy
from tests.rules.pages import blocks, text_of

#: A strategy, its contract, its use, and what `plan` learns of it; test_shown.py runs those before.
BLOCKS = blocks("docs/mechanisms.md")[2:]
EXAMPLE = text_of("examples/extending.py")


def definitions():
    """All names that the page and the example define."""
    scope = {}
    registered = dict(user_choices._REGISTERED)
    for block in [*BLOCKS, EXAMPLE]:
        exec(block, scope)
    user_choices._REGISTERED.clear()
    user_choices._REGISTERED.update(registered)
    return scope


@pytest.fixture
def page():
    """The names that the page defines, up to its contract; forgotten again after the test."""
    before = dict(_serialize._REGISTRY)
    scope = {}
    for block in BLOCKS[:2]:
        exec(block, scope)
    yield scope
    _serialize._REGISTRY.clear()
    _serialize._REGISTRY.update(before)


@pytest.mark.slow
def test_the_strategy_keeps_the_contract(page):
    suite = page["TestSeasonal"]()
    rules = [name for name in dir(suite) if name.startswith("test_")]
    assert len(rules) == 13
    for rule in rules:
        getattr(suite, rule)()


def test_the_strategy_is_calibrated_and_streams(page, capsys):
    exec(BLOCKS[2], page)
    assert page["mech"].epsilon() <= 4.0
    assert page["row"].shape == (1000,)
    printed = float(capsys.readouterr().out.split()[1])
    assert printed == pytest.approx((1.0 + 3 * 1.6**2) ** 0.5, abs=5e-6)  # columns 0, 24, 48 and 72


def test_the_contract_of_the_page_is_a_contract(page):
    class Careless(page["Seasonal"]):
        def recurrence(self):
            window = min(self.season, self.n)  # one too few
            return page["Autoregressive"](
                self.n, window=window, row=lambda t: self.coefficients[: min(window, t + 1)]
            )

    with pytest.raises(ContractError, match="recurrence"):
        check_strategy(Careless(7, 3), serialized=False)


def test_every_block_is_run():
    assert len(BLOCKS) == 4


def test_a_parameter_that_keeps_its_default_is_no_contract(page):
    seasonal = page["Seasonal"]
    with pytest.raises(ContractError, match=r"share is 0.5 in all strategies"):
        check_varied([seasonal(n, season) for n in (1, 7) for season in (1, 3)])
    check_varied([seasonal(7, 3), seasonal(7, 1, 0.9)])
