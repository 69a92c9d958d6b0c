"""Arrays in, arrays out: what the rooms above compute with, and no noun of the field."""
