"""Full runs over Flower's messages: bit for bit those of the server without Flower."""

import pytest

from tests.flower import small


def test_a_run_is_that_of_the_server_without_flower():
    models, found = small.run()
    small.same(models, small.models_without_flower())
    assert found.server.finished and found.stopped is None


def test_masked_sums_release_the_same_models():
    models, found = small.run(small.strategy(masked=True))
    small.same(models, small.models_without_flower(min_replies=2))
    assert found.stopped is None
