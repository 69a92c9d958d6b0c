"""The fixtures of `tests.torch`."""

from tests.torch.conftest import (  # noqa: F401
    all_tensors_are_alive,
    draws_of_their_own,
    one_process,
    processes_of_their_own,
    pytest_collection_finish,
)
