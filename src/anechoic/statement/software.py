"""Versions of the software behind a statement. They are no part of the fingerprint."""

from __future__ import annotations

import platform
import sys
from functools import cache


def software() -> dict[str, str]:
    """Name -> version; torch and opacus only where this process has imported them."""
    loaded = (name for name in ("torch", "opacus") if name in sys.modules)
    found = {name: version_of(name) for name in ("anechoic", "numpy", "scipy", "dp-accounting", *loaded)}
    return {**found, "python": platform.python_version()}


@cache
def version_of(name: str) -> str:
    from importlib import metadata  # a tenth of a second

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "unknown"  # a source tree
