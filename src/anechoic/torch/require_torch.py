"""PyTorch is an extra: without it, `import anechoic.torch` says which, and how to have the smaller build."""

try:
    import torch  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ImportError(
        "anechoic.torch needs PyTorch, which is not installed: pip install 'anechoic[torch]'. On Linux that"
        " is the build with CUDA, of several gigabytes. Without a GPU install its CPU build first, by the"
        " command that https://pytorch.org/get-started/locally shows for the platform CPU."
    ) from error
