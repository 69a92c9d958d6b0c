"""The command line: anechoic demo | plan | app | stream | explain | audit."""

from anechoic.cli.main import main as main
