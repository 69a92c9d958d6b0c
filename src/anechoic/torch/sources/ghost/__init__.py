"""Ghost clipping, for the layers on its list: an upper bound of each row's norm, without its gradient."""
