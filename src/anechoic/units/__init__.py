"""Privacy units that own several examples: who owns what, and what one of them may add to a step."""

from anechoic.units.batch import Indices, UnitBatch, check_item_fits
from anechoic.units.duplicates import check_schema, find_duplicates
from anechoic.units.ownership import Units

__all__ = ["Indices", "UnitBatch", "Units", "check_item_fits", "check_schema", "find_duplicates"]
