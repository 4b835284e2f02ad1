"""A cost as data: layers with their inputs, incidents and runs in them, and the cost of checkpoints.

The field names are the keys of `holdfast cost --json`.
"""

from typing import Literal

import msgspec

from holdfast.ledger.split import Split

LayerKey = Literal["direct_compute", "reserved_capacity", "rollback", "response_labour", "schedule_slip"]

LAYER_TITLES: dict[LayerKey, str] = {
    "direct_compute": "direct compute",
    "reserved_capacity": "reserved capacity",
    "rollback": "rollback, regression",
    "response_labour": "response labour",
    "schedule_slip": "schedule slip",
}


class Input(msgspec.Struct, frozen=True, kw_only=True):
    """One number that a layer is computed from."""

    name: str
    value: float
    unit: str
    assumed: bool
    source: str


class Layer(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of cost of a loss. usd: None if unknown, as without a number of GPUs.

    basis: what the GPU-hours are based on, if that is an estimate: "estimated ± 0.4 %".
    """

    key: LayerKey
    title: str
    formula: str
    inputs: tuple[Input, ...]
    usd: float | None
    gpu_hours: float | None
    basis: str = ""


class Together(msgspec.Struct, frozen=True, kw_only=True):
    """The layers' sum as a range, and a sentence on what it contains."""

    usd_min: float
    usd_max: float
    caveat: str


class LostProgress(msgspec.Struct, frozen=True, kw_only=True):
    """A loss as training progress: hours of the whole run, and the steps of a healthy run in them.

    day_share: as a share of a day's progress without losses.
    """

    run_hours: float | None
    steps: float | None
    tokens: float | None
    day_share: float | None


class Stack(msgspec.Struct, frozen=True, kw_only=True):
    """A loss in five layers and as progress. together: None unless every layer is known."""

    lost_gpu_hours: float
    layers: tuple[Layer, ...]
    together: Together | None
    progress: LostProgress
    basis: str = ""


class IncidentCost(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of one incident; so far, if it is not over. is_cut_off: the log of its run ends before it.

    spent_ns: from when to when it cost GPU-time, which may be before it began and after it was over; None if
    it cost nothing.
    """

    run: str
    run_name: str
    name: str
    what: str
    subject: str
    began_ns: int
    ended_ns: int
    over: bool
    is_cut_off: bool
    spent_ns: tuple[int, int] | None
    gpus: int
    stack: Stack
    remarks: tuple[str, ...]


class IncidentLine(msgspec.Struct, frozen=True, kw_only=True):
    """One of a run's incidents, with the amount of each layer."""

    name: str
    what: str
    subject: str
    began_ns: int
    lost_gpu_hours: float
    usd: dict[LayerKey, float | None]
    basis: str = ""


class PerDay(msgspec.Struct, frozen=True, kw_only=True):
    """A throughput. tokens: None if the run did not declare how many are in a step."""

    steps: float
    tokens: float | None


class Exposure(msgspec.Struct, frozen=True, kw_only=True):
    """The work that a failure would roll back if only checkpoints survived it."""

    steps: float
    tokens: float | None
    gpu_hours: float | None
    usd: float | None
    day_share: float | None


class CheckpointThroughput(msgspec.Struct, frozen=True, kw_only=True):
    """Saving and recovering in terms of throughput, in the time that is known.

    efficiency          the share of the time in steps that was not spent waiting for checkpoints; None
                        if none is recorded
    healthy, actual     progress a day without losses, and as it was
    lost_to_saving      progress a day lost to waiting for checkpoints
    lost_to_recovery    progress a day lost to fatal incidents
    recoveries          the number of fatal incidents
    recovery_gpu_hours  their mean loss
    exposure_now        what a failure at the end of the record would roll back, since the last checkpoint;
                        nothing for a completed run, None if no checkpoint is recorded
    exposure_mean       half of the work between two checkpoints: a failure may come at any time
    exposure_worst      the most work ever since a checkpoint, also of a completed run; None without one
    basis               what a healthy step is based on, if that is an estimate
    """

    efficiency: float | None
    healthy: PerDay | None
    actual: PerDay | None
    lost_to_saving: PerDay | None
    lost_to_recovery: PerDay | None
    recoveries: int
    recovery_gpu_hours: float | None
    exposure_now: Exposure | None
    exposure_mean: Exposure | None
    exposure_worst: Exposure | None
    basis: str = ""


class RunCost(msgspec.Struct, frozen=True, kw_only=True):
    """The losses of a run: in total, in its incidents, and outside of incidents.

    split: what was paid for; unknown_usd: the part of it that is not known, which is in no layer.
    """

    run: str
    run_name: str
    first_ns: int
    last_ns: int
    window: tuple[int | None, int | None]
    gpus: int
    paid_gpu_hours: float
    split: Split
    unknown_usd: float | None
    total: Stack
    in_incidents: Stack
    elsewhere: Stack
    incidents: tuple[IncidentLine, ...]
    checkpointing: CheckpointThroughput
    remarks: tuple[str, ...]
