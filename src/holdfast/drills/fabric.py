"""The fabric between nodes: ports with errors, leaves with too little uplink, and the bandwidth that is left.

Every GPU has a port of its own. A member's exchange in a step is as fast as the worst of its ports, through
the bandwidth left at its leaf.
"""

import numpy as np

from holdfast.drills.levers import Floats, Levers, on_which
from holdfast.twin.cluster import Layout

PORT_BYTES_PER_S = 50e9
"""400 Gb/s."""
ACHIEVED_SHARE = 0.95
"""About 380 Gb/s on a 400 Gb/s port counts as healthy in the field."""
RETRANSMIT_S = 2e-3
"""The port's cost of each symbol error: it sends again from the lost packet on."""
RECOVERY_S = 1.5
"""How long a link that retrains carries nothing."""
PORT_SHARE_MIN = 0.02
WAIT_TICKS_PER_S = 45e6
"""The unit of `port_transmit_wait` is the device's own; only its growth means anything."""
WAIT_SHARE = 0.004
"""Even a healthy port waits now and then."""
WAIT_TICKS_MAX = 2.0**32 - 1
"""A counter of 32 bits stops here."""


def port_share(symbols_per_s: Floats, recoveries_per_s: Floats) -> Floats:
    """The share of a port's bandwidth left by retransmissions and retraining."""
    up = 1.0 - np.minimum(recoveries_per_s * RECOVERY_S, 1.0)
    share: Floats = np.maximum(up / (1.0 + symbols_per_s * RETRANSMIT_S), PORT_SHARE_MIN)
    return share


def bandwidth_share(layout: Layout, levers: Levers, tick: int) -> Floats:
    """By node: its bandwidth for an exchange, as a share of a healthy node's."""
    ports = port_share(levers.at("symbols", tick), levers.at("recoveries", tick))
    worst = ports.reshape(layout.nodes, layout.gpus_per_node).min(axis=1)
    share: Floats = worst * levers.at("uplink", tick)[on_which(layout, "leaf")]
    return share


def waiting_share(levers: Levers) -> Floats:
    """Scrape by leaf: the share of the time in which its ports have data to send but must wait."""
    return WAIT_SHARE + (1.0 - levers.over_time("uplink"))
