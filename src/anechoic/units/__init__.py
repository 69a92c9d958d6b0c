"""Privacy units that own several examples: who owns what, and what one of them may add to a step."""

from anechoic.units.duplicates import check_schema, find_duplicates
from anechoic.units.ownership import Units

__all__ = ["Units", "check_schema", "find_duplicates"]
