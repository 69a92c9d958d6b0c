"""The command line: anechoic demo | plan | app | stream | explain | audit | budget."""

from anechoic.cli.main import main as main
