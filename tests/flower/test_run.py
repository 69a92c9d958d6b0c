"""Full runs over Flower's messages: bit for bit those of the server without Flower."""

import pytest

from tests.flower import small


def test_a_run_is_that_of_the_server_without_flower():
    models, found = small.run()
    small.same(models, small.models_without_flower())
    assert found.server.finished and found.stopped is None
