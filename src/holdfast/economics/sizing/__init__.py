"""Which layouts fit a model and a cluster: memory, pace, loaders, survival of a lost node."""
