"""Openings of a run: each draws a salt, and fresh noise from its first row on follows from key and salt.

So what one process may have drawn is drawn by no other: a state that is opened twice, as an older version of
its file put back, costs two releases with independent noise, and never the exact difference of two.
"""

from __future__ import annotations

import secrets

#: First row of noise that an opening draws, and its salt.
Opening = tuple[int, bytes]


def new_salt() -> bytes:
    """16 random bytes; not secret."""
    return secrets.token_bytes(16)
