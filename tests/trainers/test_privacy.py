"""Settings of a private trainer: what is refused, and where."""

import pytest

from anechoic.trainers import Privacy


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "neither target_epsilon nor noise_multiplier"),
        ({"target_epsilon": 1.0, "epochs": 3}, "epochs= is not for Privacy.*the trainer's number of epochs"),
        ({"target_epsilon": 1.0, "module": 3}, "module= is not for Privacy"),
        ({"target_epsilon": 1.0, "grad_sample_mode": "ghost"}, "write the loop yourself"),
        ({"target_epsilon": 1.0, "target_eps": 2.0}, "target_eps= is unknown to Privacy: it takes"),
        ({"noise_multiplier": 1.0, "target_epsilons": 2.0}, "target_epsilons= is unknown"),
        ({"target_epsilon": 1.0, "stop_at_epsilon": 0.0}, "stop_at_epsilon=0"),
        ({"target_epsilon": 1.0, "journal_sync_every": 0}, "journal_sync_every=0"),
    ],
)
def test_what_is_not_a_setting_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Privacy(**options)


def test_every_argument_of_make_private_is_the_trainer_s_or_a_setting():
    from inspect import signature

    from anechoic.torch import PrivacyEngine
    from anechoic.trainers.privacy import OF_THE_TRAINER

    names = set(signature(PrivacyEngine.make_private_with_epsilon).parameters) - {"self"}
    assert set(OF_THE_TRAINER) < names
    for name in names - set(OF_THE_TRAINER):
        assert Privacy(**{"target_epsilon": 1.0, name: 1.0}).options[name] == 1.0
