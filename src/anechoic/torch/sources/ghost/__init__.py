"""Ghost clipping, for the layers on its list."""
