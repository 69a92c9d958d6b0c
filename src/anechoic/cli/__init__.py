"""The command line: anechoic demo | plan | stream | explain | audit."""

from anechoic.cli.main import main as main
