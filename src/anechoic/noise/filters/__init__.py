"""How one noise row is made from a fresh row and the memory: one file for each kind of recurrence."""
