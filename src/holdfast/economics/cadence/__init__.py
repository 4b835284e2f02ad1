"""How often to save, and when a run will be done: checkpoint cadence, renewal processes, expectation."""

from holdfast.economics.cadence.cadence import daly_work_s, learned_mtbf_s, mtbf_of_nodes_s

__all__ = ["daly_work_s", "learned_mtbf_s", "mtbf_of_nodes_s"]
