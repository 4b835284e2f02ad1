"""What a record of faults says about a cluster: rates, repairs, bad nodes, independence."""
