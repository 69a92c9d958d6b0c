"""The privacy statement: what a mechanism guarantees, under which assumptions, and why.

    print(mech.report())                            # plain text
    mech.report("markdown", out="statement.md")     # also "html" and "json"

What is said is registered beside each mechanism (`statement_of`), a `Theorem` is the evidence behind a
number, and one file lays it out in each format.
"""

from anechoic.statement.formats import FORMATS, Format, render
from anechoic.statement.rounding import round_up
from anechoic.statement.statement import Assumption, Statement, statement_of
from anechoic.statement.text import lay_out
from anechoic.statement.theorem import Theorem

__all__ = [
    "FORMATS",
    "Assumption",
    "Format",
    "Statement",
    "Theorem",
    "lay_out",
    "render",
    "round_up",
    "statement_of",
]
