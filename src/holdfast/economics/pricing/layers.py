"""What a cost is told as: layers with their inputs, incidents and runs in them, and what checkpoints cost.

The field names are the keys of `holdfast cost --json`.
"""

from typing import Literal

import msgspec

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
    """One way in which a loss costs. usd: None where it cannot be known, as without a number of GPUs.

    basis: what the GPU-hours rest on, where that is an estimate: "estimated ± 0.4 %".
    """

    key: LayerKey
    title: str
    formula: str
    inputs: tuple[Input, ...]
    usd: float | None
    gpu_hours: float | None
    basis: str = ""


class Together(msgspec.Struct, frozen=True, kw_only=True):
    """The layers' sum as a range, and what it does and does not contain."""

    usd_min: float
    usd_max: float
    caveat: str


class LostProgress(msgspec.Struct, frozen=True, kw_only=True):
    """A loss as training progress: hours of the whole run, and what a healthy run does in them.

    day_share: of what the run, with nothing lost, gets done in a day.
    """

    run_hours: float | None
    steps: float | None
    tokens: float | None
    day_share: float | None


class Stack(msgspec.Struct, frozen=True, kw_only=True):
    """A loss in five layers and as progress. together: None where not every layer is known."""

    lost_gpu_hours: float
    layers: tuple[Layer, ...]
    together: Together | None
    progress: LostProgress
    basis: str = ""


class IncidentCost(msgspec.Struct, frozen=True, kw_only=True):
    """What one incident cost; so far, if it is not over."""

    run: str
    name: str
    what: str
    subject: str
    began_ns: int
    ended_ns: int
    over: bool
    gpus: int
    stack: Stack
    remarks: tuple[str, ...]


class IncidentLine(msgspec.Struct, frozen=True, kw_only=True):
    """An incident among a run's: what each layer of it amounts to."""

    name: str
    what: str
    subject: str
    began_ns: int
    lost_gpu_hours: float
    usd: dict[LayerKey, float | None]
    basis: str = ""


class PerDay(msgspec.Struct, frozen=True, kw_only=True):
    """A throughput. tokens: None where the run did not declare how many are in a step."""

    steps: float
    tokens: float | None


class Exposure(msgspec.Struct, frozen=True, kw_only=True):
    """What a failure would roll back if only checkpoints survived it."""

    steps: float
    tokens: float | None
    gpu_hours: float | None
    usd: float | None
    day_share: float | None


class CheckpointThroughput(msgspec.Struct, frozen=True, kw_only=True):
    """Saving and recovering in terms of throughput.

    efficiency          the share of the time in steps that was not spent waiting for checkpoints; None
                        where none is recorded
    healthy, actual     what a day brings with nothing lost, and what it brought
    lost_to_saving      what waiting for checkpoints took from a day
    lost_to_recovery    what fatal incidents took from a day
    recoveries          how many there were
    recovery_gpu_hours  what each of them took, on average
    exposure_now        what a failure at the end of the record would roll back, since the last checkpoint;
                        nothing of a completed run, None where no checkpoint is recorded
    exposure_mean       half of what lies between two checkpoints: a failure may come at any time
    exposure_worst      the most that ever lay between two, or lies there now; None where none is recorded
    basis               what a healthy step is, where that is an estimate
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
    """What a run lost: altogether, in its incidents, and where no incident explains it."""

    run: str
    first_ns: int
    last_ns: int
    window: tuple[int | None, int | None]
    gpus: int
    paid_gpu_hours: float
    total: Stack
    in_incidents: Stack
    elsewhere: Stack
    incidents: tuple[IncidentLine, ...]
    checkpointing: CheckpointThroughput
    remarks: tuple[str, ...]
