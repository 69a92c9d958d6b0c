"""Where the project is at home: the one place that names it."""

#: Address of the repository; "" until somebody owns one: then documentation is in the source alone.
HOME = ""
#: Where the links of statements lead.
PROOFS = f"{HOME}/blob/main/docs/proofs" if HOME else "docs/proofs"
