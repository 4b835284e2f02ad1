"""Which layout fits a model and a cluster: memory, pace, loaders, what survives the loss of a node."""
