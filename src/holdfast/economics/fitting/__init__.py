"""Statistics of a cluster's recorded faults: rates, repairs, bad nodes, independence."""
