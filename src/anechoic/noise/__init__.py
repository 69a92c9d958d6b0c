"""Noise streams: the rows of C^-1 Z, one step at a time, addressed by (256-bit key, step, coordinate).

Importing this room loads NumPy only; `cryptography` is loaded with the first row or batch, and PyTorch by
`backend="torch"`.
"""

from anechoic.keys import derive, new_key
from anechoic.noise.stream import NoiseStream

__all__ = ["NoiseStream", "derive", "new_key"]
