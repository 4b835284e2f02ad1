"""Steps computed again with other durations, many what-ifs at once: one column each."""

import numpy as np

from holdfast.stragglers.graph import Graph
from holdfast.stragglers.trace import Floats


def step_times_s(graph: Graph, durations_s: Floats) -> Floats:
    """How long each step takes (rows) in each what-if (columns).

    durations_s: of the graph's nodes in their order, a column a what-if; it is used up, as there may be much.
    """
    ended_s = durations_s
    for level in graph.levels:
        last_s = ended_s[level.places[0]]
        for before in level.places[1:]:
            some = last_s[: len(before)]
            np.maximum(some, ended_s[before], out=some)
        if len(level.crowd):
            crowd_s = np.maximum.reduceat(ended_s[level.crowd], level.crowd_offsets, axis=0)
            last_s[: len(crowd_s)] = crowd_s
        ended_s[level.first : level.last] += last_s
    times_s: Floats = np.maximum.reduceat(ended_s[graph.ends], graph.end_offsets, axis=0)
    return times_s
