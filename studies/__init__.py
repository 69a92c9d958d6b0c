"""Studies and the papers' exhibits, beside the package: they use it as anyone would."""
