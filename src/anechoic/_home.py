"""Where the documentation is: in the source, until somebody owns an address. No other file names it."""

#: A folder, or an address without a slash at its end.
HOME = "docs"
#: Where the links of statements lead.
PROOFS = f"{HOME}/proofs"
