"""Real faults in a live run: stated before, bounded, put back, and judged by the record."""
