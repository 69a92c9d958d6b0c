"""`anechoic federate`: federated training with privacy for whole clients, by one server and simulated clients."""
