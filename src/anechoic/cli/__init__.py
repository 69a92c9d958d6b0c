"""The command line: anechoic demo | train | plan | stream | explain | audit | theory."""

from anechoic.cli.main import main

__all__ = ["main"]
