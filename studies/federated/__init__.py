"""`federate`: training with privacy for whole clients, by a server and simulated clients."""
