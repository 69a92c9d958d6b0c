"""Filters: how one noise row is made from a fresh row and the memory, by kind of recurrence."""
