"""Rows of noise rounded to integers exactly: one filter for each kind of recurrence.

The proof is docs/proofs/noise.md#exact-rounding.
"""
