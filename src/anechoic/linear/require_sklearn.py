"""scikit-learn is an extra: without it, `import anechoic.linear` says which one."""

try:
    import sklearn  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "sklearn":
        raise
    raise ImportError(
        "anechoic.linear needs scikit-learn, which is not installed: pip install 'anechoic[sklearn]'."
    ) from error
