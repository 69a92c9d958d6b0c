"""Real data: the flights that ship with the package, and a reader for Fashion-MNIST files."""

from anechoic.lab.data.fashion_mnist import fashion_mnist
from anechoic.lab.data.flights import flights, flights_design

__all__ = ["fashion_mnist", "flights", "flights_design"]
