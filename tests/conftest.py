"""Settings that every test shares."""

import gc

from hypothesis import settings

settings.register_profile("anechoic", derandomize=True, deadline=None, print_blob=False)
settings.load_profile("anechoic")


def pytest_collection_finish():
    """Imports and collection leave a million objects: let the collector pass them by, test after test."""
    gc.collect()
    gc.freeze()
