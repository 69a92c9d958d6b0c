"""Reports for people: HTML pages that load nothing, drawn without a plotting library, and tables."""

from anechoic.report.experiment import experiment_page

__all__ = ["experiment_page"]
