"""Stragglers by what-if: who or what holds a training step back, from a trace of its operations.

The operations of all workers are put back into the order in which they wait for each other (`graph`), and
the step is simulated again with other durations (`simulate`): with everything at its ideal, and with all but
one worker, stage, replica or type of operation (`whatif`). What that explains becomes a sentence (`verdict`).
The method and its figures are those of Lin et al., "Understanding Stragglers in Large Model Training Using
What-if Analysis" (OSDI 2025).
"""
