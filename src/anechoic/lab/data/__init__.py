"""Real data: flights that ship with the package; readers for Fashion-MNIST, changelogs and docstrings."""

from anechoic.lab.data.changelogs import changelogs
from anechoic.lab.data.docstrings import docstrings
from anechoic.lab.data.fashion_mnist import fashion_mnist
from anechoic.lab.data.flights import flights, flights_design

__all__ = ["changelogs", "docstrings", "fashion_mnist", "flights", "flights_design"]
