"""Set up a run from the arguments of make_private: checks, plans and refusals before training."""
