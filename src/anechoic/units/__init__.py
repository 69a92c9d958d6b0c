"""Privacy units that own several examples: who owns what, and what one of them may add to a step."""

from anechoic.units.duplicates import check_schema, find_duplicates
from anechoic.units.ownership import Units, bounded_batches

__all__ = ["Units", "bounded_batches", "check_schema", "find_duplicates"]
