"""Private selection: the best of a random number of whole runs, inside one guarantee."""
