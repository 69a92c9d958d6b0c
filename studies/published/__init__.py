"""Figures and tables of the papers, computed again: `exhibit("000-2").write(folder)`."""

from studies.published.exhibit import Curve, Exhibit, Panel
from studies.published.exhibits import EXHIBITS, TRAINED, TRAINED_ON_TEXT, exhibit

__all__ = ["EXHIBITS", "TRAINED", "TRAINED_ON_TEXT", "Curve", "Exhibit", "Panel", "exhibit"]
