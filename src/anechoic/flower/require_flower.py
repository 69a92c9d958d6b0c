"""Flower is an extra: without it, `import anechoic.flower` says which one."""

try:
    import flwr.serverapp  # noqa: F401
except ModuleNotFoundError as error:
    raise ImportError(
        f"anechoic.flower needs Flower ({error}): pip install 'anechoic[flower]'; for Flower's own simulation"
        " engine 'anechoic[flower-simulation]'."
    ) from error
