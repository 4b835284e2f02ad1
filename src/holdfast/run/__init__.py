"""One run's control plane, without torch: membership, coordinator, agents, launcher."""
