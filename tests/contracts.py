"""Whole contracts, on one thing that keeps or breaks them."""

from functools import partial

from anechoic import testing


def check(contract, subject, *, without=(), **settings):
    """Every test of a contract."""
    made = contract()
    vars(made).update({contract.gives: lambda: [subject], **settings})
    for name in [name for kind in contract.__mro__ for name in vars(kind)]:
        if name.startswith("test_") and name not in without:
            getattr(made, name)()


# one strategy alone cannot show other values of every parameter
check_strategy = partial(
    check, testing.StrategyContract, without=["test_each_parameter_has_another_value_than_its_default"]
)
check_workload = partial(check, testing.WorkloadContract)
check_sampling = partial(check, testing.SamplingContract)
check_participation = partial(check, testing.ParticipationContract)
check_accountant = partial(check, testing.AccountantContract)
