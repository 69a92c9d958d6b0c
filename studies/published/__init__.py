"""Figures and tables of the papers, computed again: `exhibit("000-2").write(folder)`."""

from studies.published.exhibit import Curve, Exhibit, Panel
from studies.published.exhibits import EXHIBITS, TRAINED, exhibit

__all__ = ["EXHIBITS", "TRAINED", "Curve", "Exhibit", "Panel", "exhibit"]
