"""Settings that every test shares."""

from hypothesis import settings

settings.register_profile("anechoic", derandomize=True, deadline=None, print_blob=False)
settings.load_profile("anechoic")
