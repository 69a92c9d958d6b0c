"""Min-sep sampling: independent draws among the steps that the separation leaves open."""
