"""Reports for people: HTML pages that load nothing, charts drawn by matplotlib, and tables."""

from anechoic.lab.report.experiment import experiment_page, utility_chart

__all__ = ["experiment_page", "utility_chart"]
