"""What all contracts have in common: they hold every class of ours, and ask for what they are to hold."""

import pytest

from anechoic import _serialize, testing
from anechoic.participation.base import Participation
from anechoic.sampling.base import Sampling
from anechoic.strategies.base import Strategy
from anechoic.workloads.base import Workload
from tests.testing import test_participation_contract, test_sampling_contract, test_workload_contract
from tests.zoo import STRATEGIES

HELD = {
    Participation: test_participation_contract.OURS,
    Sampling: test_sampling_contract.SCHEMES,
    Strategy: STRATEGIES.values(),
    Workload: test_workload_contract.SMALL.values(),
}


@pytest.mark.parametrize("kind", HELD)
def test_every_registered_class_of_ours_is_held_to_its_contract(kind):
    registered = {cls for cls in _serialize._REGISTRY.values() if issubclass(cls, kind)}
    ours = {cls for cls in registered if cls.__module__.startswith("anechoic.")}
    assert ours <= set(map(type, HELD[kind]))


@pytest.mark.parametrize("name", [name for name in testing.__all__ if name.endswith("Contract")])
def test_a_contract_asks_for_what_it_is_to_hold(name):
    contract = getattr(testing, name)()
    test = next(getattr(contract, name) for name in dir(contract) if name.startswith("test_"))
    with pytest.raises(NotImplementedError, match=f"give {contract.gives}"):
        test()
