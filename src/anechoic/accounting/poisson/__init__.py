"""Independent draws at every step: (cyclic) Poisson sampling."""
