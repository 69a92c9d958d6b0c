"""Readers of data sets that do not ship with the package: Fashion-MNIST, changelogs and docstrings."""
