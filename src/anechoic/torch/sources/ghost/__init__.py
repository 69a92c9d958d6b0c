"""Ghost clipping, for the layers on its list: an upper bound of each row's norm, without its gradient."""

from anechoic.torch.sources.ghost import source  # noqa: F401 - each registers its modes
