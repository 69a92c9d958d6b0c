"""Pictures in one style: of curves, of a mechanism, of a plan."""
