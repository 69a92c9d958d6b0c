"""Pictures in one style: of curves and matrices, of a mechanism, of a plan."""
