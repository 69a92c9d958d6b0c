"""The privacy statement: what a mechanism guarantees, under which assumptions, and why.

    print(mech)                                     # what a reviewer signs, in about twelve lines
    print(mech.report())                            # and the details
    mech.report("markdown", out="statement.md")     # also "html" and "json"

What is said is registered beside each mechanism (`statement_of`), a `Theorem` is the evidence behind a
number, and one file lays it out in each format.
"""
