"""The fixtures of `tests.torch`."""

from tests.torch.conftest import one_process, processes_of_their_own  # noqa: F401
