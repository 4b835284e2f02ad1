"""Signs: every kind of problem, with the meaning of those that no rule in rules.py explains."""

from typing import Literal

_Cooling = Literal["leak", "low-flow", "pump-strained", "slow-fan", "warm-inlet", "warm-supply"]
_Power = Literal["failed-supply", "low-limit", "low-power", "power-throttle"]
_Heat = Literal["heating", "hot-gpu", "low-clock", "thermal-throttle"]
_GpuMemory = Literal[
    "alloc-retries",
    "filling-buffer",
    "full-buffer",
    "lost-rows",
    "memory-errors",
    "remapped-rows",
    "uncorrected-errors",
]
_GpuLink = Literal["bus-replays", "narrow-bus", "nvlink-errors", "slow-nvlink"]
_Driver = Literal["memory-xid", "nvlink-xid", "xid"]
_Link = Literal[
    "damaged-packets", "link-down", "link-recoveries", "resent-packets", "slow-link", "symbol-errors"
]
_Congestion = Literal["port-waits", "uplink-waits"]
_Memory = Literal["killed", "low-memory", "memory-pressure", "swapping", "thrashing"]
_Disk = Literal["busy-disk", "full-disk", "io-pressure", "slow-disk"]
_Host = Literal["changed", "clock-off", "cpu-pressure", "full-table", "hung-tasks", "slow-names"]
_Storage = Literal["busy-mount", "resent-calls", "resent-rpcs", "slow-lustre", "slow-reads", "slow-writes"]
_Pool = Literal["full-cache", "slow-first-token", "slow-transfer"]
_Late = Literal["collecting", "late-compute", "late-data", "late-exchange", "late-stage", "wandering"]
_Run = Literal["creeping", "frequent-checkpoints", "no-step", "slow-checkpoint", "slow-step", "stopped-first"]
_Machine = Literal[
    _Cooling, _Power, _Heat, _GpuMemory, _GpuLink, _Driver, _Link, _Congestion, _Memory, _Disk, _Host
]
Sign = Literal[_Machine, _Storage, _Pool, _Late, _Run]

MEANINGS: dict[Sign, str] = {
    "slow-lustre": "Lustre operations take long",
    "clock-off": "the host's clock is off",
    "hot-gpu": "hotter than usual",
    "low-clock": "the clock is lower than usual",
    "low-power": "draws less power at a lower clock, but not because of heat",
    "low-limit": "the power limit is lower",
    "thermal-throttle": "clocks are held down for heat",
    "power-throttle": "clocks are held down for power",
    "slow-link": "the link was trained to a lower rate than others",
    "heating": "is heating up towards its limit",
    "no-step": "no step has been made for longer than usual",
    "stopped-first": "made no further step when others still did",
    "slow-step": "steps take longer",
    "late-compute": "computes longer than it did",
    "late-stage": "the members of one stage compute longer than they did",
    "late-exchange": "its exchange takes longer",
    "late-data": "waits for its data",
    "wandering": "another member is late each time",
    "slow-checkpoint": "checkpoints hold training up for longer",
    "frequent-checkpoints": "checkpoints are made more often, or are larger",
    "collecting": "members spend more time in the garbage collector",
    "slow-reads": "reads take longer on this mount",
    "slow-writes": "writes take longer on this mount",
    "busy-mount": "others send far more requests to this mount than before",
    "resent-calls": "calls to this mount are sent again",
    "narrow-bus": "the PCIe link is narrower than the device, or slower",
    "slow-disk": "requests to a disk take long",
    "full-disk": "a disk is full",
    "low-memory": "hardly any memory is left",
    "full-table": "the connection table is full",
    "alloc-retries": "the allocator has to free memory and try again",
    "filling-buffer": "the GPUs' memory fills up bit by bit",
    "full-buffer": "hardly any of the GPU's memory is left",
    "changed": "other software runs",
    "creeping": "steps become longer and longer",
    "slow-nvlink": "moves less over NVLink than its peers",
    "xid": "the driver reported an error",
    "memory-xid": "the driver reported a memory error",
    "nvlink-xid": "the driver reported an NVLink error",
}
"""Signs found by code; a sign found by a rule has the note of that rule."""
