"""Real faults in a live run: with a hypothesis, bounded, undone, and judged from the record."""
