"""What is free is columns: banded C, each column its own, or the lengths of the columns."""
