"""The inputs of a cadence: given by the user, else from a run's record, else assumed."""

import math

import msgspec

from holdfast import wording
from holdfast.economics.cadence import cadence
from holdfast.economics.cadence.advice import CadenceCase
from holdfast.economics.cadence.cadence import GPUS_PER_NODE, CheckpointLevel, Costs, check_interval
from holdfast.economics.pricing.layers import Input
from holdfast.economics.pricing.prices import RECORDED, Prices
from holdfast.ledger.failures import failures, stall_s, write_s
from holdfast.ledger.reporting import report
from holdfast.ledger.runs import fold_run
from holdfast.record.errors import InputError
from holdfast.record.store import Store

GIVEN = "given"
PRESENT_INTERVAL = "present interval"
STALL_S, SAVE_S = 0.59, 51.06
BYTECHECKPOINT = "ByteCheckpoint (Wan et al. 2025): 405B parameters on 8,960 GPUs"
WAITED_FOR = "training waits until it is written"
INTERVAL_S = 3_600.0
KOKOLIS_HOURLY = "the longer of the two intervals that Kokolis et al. 2024 compare"
DOWNTIME_S = 300.0
_KOKOLIS_RESTART = "Kokolis et al. 2024: from a failure to the next step, restoring included"
_LLAMA3 = "Llama 3 (Dubey et al. 2024): 419 in 54 days on 2,048 nodes"


class CadenceInputs(msgspec.Struct, frozen=True, kw_only=True):
    """The user's inputs; None if not given. mtbf_source: the source of the MTBF."""

    mtbf_s: float | None
    mtbf_source: str = GIVEN
    gpus: int | None
    nodes: int | None
    failures_per_1000_node_days: float | None
    stall_s: float | None
    write_s: float | None
    restore_s: float | None
    downtime_s: float | None
    step_s: float | None
    interval_s: float | None
    levels: tuple[CheckpointLevel, ...]


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """Values from the record of a run; None if not recorded.

    failures: during up_s, the time the run was up; None without a record. repair_s: from a failure to the
    next commit. restore_s: the part of it that loads a checkpoint. work_s: between two checkpoints.
    """

    gpus: int | None = None
    failures: int | None = None
    up_s: float = 0.0
    stall_s: float | None = None
    write_s: float | None = None
    repair_s: float | None = None
    restore_s: float | None = None
    step_s: float | None = None
    step_source: str = RECORDED
    work_s: float | None = None
    usd_per_gpu_hour: float | None = None
    chip: str | None = None


def settle(given: CadenceInputs, recorded: Recorded, prices: Prices) -> tuple[CadenceCase, tuple[Input, ...]]:
    """The case, and all its inputs with their sources."""
    if given.gpus is not None and given.nodes is not None and given.gpus < given.nodes:
        raise InputError(
            f"{wording.many(given.gpus, 'GPU')} cannot be on {given.nodes:,} nodes.",
            hint="--gpus counts all nodes together; one of the two flags is enough.",
        )
    book = _Book()
    mtbf_s, gpus = _failures(given, recorded, book)
    step_s = book.known_time("step", given.step_s, recorded.step_s, recorded.step_source)
    costs = _costs(given, recorded, book)
    if given.interval_s is not None:
        check_interval(given.interval_s, costs.stall_s)
    interval_s = None if recorded.work_s is None else recorded.work_s + costs.stall_s
    price = prices.planned(recorded.chip, recorded.usd_per_gpu_hour)
    case = CadenceCase(
        mtbf_s=mtbf_s,
        costs=costs,
        interval_s=book.time(PRESENT_INTERVAL, given.interval_s, interval_s, (INTERVAL_S, KOKOLIS_HOURLY)),
        gpus=gpus,
        usd_per_gpu_hour=book.note("GPU-hour", price.value, "USD", price.source, assumed=price.assumed),
        step_s=step_s,
        levels=given.levels,
    )
    return case, tuple(book.inputs)


class _Book:
    """The inputs, in the order in which they were settled."""

    def __init__(self) -> None:
        self.inputs: list[Input] = []

    def note(self, name: str, value: float, unit: str, source: str, *, assumed: bool = False) -> float:
        self.inputs.append(Input(name=name, value=value, unit=unit, assumed=assumed, source=source))
        return value

    def known_time(
        self, name: str, given_s: float | None, recorded_s: float | None, source: str = RECORDED
    ) -> float | None:
        if given_s is not None:
            return self.note(name, given_s, "s", GIVEN)
        return None if recorded_s is None else self.note(name, recorded_s, "s", source)

    def time(
        self, name: str, given_s: float | None, recorded_s: float | None, assumed: tuple[float, str]
    ) -> float:
        """The given time, else the recorded one, else the assumed one (how long, and why)."""
        known_s = self.known_time(name, given_s, recorded_s)
        return self.note(name, assumed[0], "s", assumed[1], assumed=True) if known_s is None else known_s


def _failures(given: CadenceInputs, recorded: Recorded, book: _Book) -> tuple[float, float]:
    """The mean time between failures, and the GPUs."""
    gpus = given.gpus or (given.nodes or 0) * GPUS_PER_NODE or recorded.gpus
    if given.mtbf_s is not None:
        book.note("MTBF", given.mtbf_s, "s", given.mtbf_source)
    if gpus is not None:
        book.note("GPUs", gpus, "", GIVEN if given.gpus or given.nodes else RECORDED)
    elif given.mtbf_s is not None:
        nodes = max(1, round(cadence.mtbf_of_nodes_s(1) / given.mtbf_s))
        gpus = GPUS_PER_NODE * nodes
        book.note("GPUs", gpus, "", f"as many as fail so often, by {_LLAMA3}", assumed=True)
    elif recorded.failures is not None:
        raise InputError("The run's record does not say how many GPUs it has.", hint="Give --gpus.")
    else:
        raise InputError(
            "The failure rate of the run is unknown.", hint="Give --mtbf 3.1h, --gpus 16384 or --run RUN."
        )
    return given.mtbf_s or _mtbf_s(given, recorded, gpus, book), gpus


def _mtbf_s(given: CadenceInputs, recorded: Recorded, gpus: int, book: _Book) -> float:
    """From the given rate; else from the recorded failures; if there are few, with a published prior."""
    rate, failed = given.failures_per_1000_node_days, recorded.failures or 0
    seen = f"{wording.many(failed, 'failure')} in {wording.duration(round(recorded.up_s * 1e9))} up"
    if rate is None and cadence.tells_rate(failed, recorded.up_s):
        return book.note("MTBF", recorded.up_s / failed, "s", seen)
    nodes = given.nodes or math.ceil(gpus / GPUS_PER_NODE)
    book.note("nodes", nodes, "", GIVEN if given.nodes else "one for 8 GPUs", assumed=not given.nodes)
    if rate is not None:
        book.note("failures", rate, "per 1000 node-days", GIVEN)
        return book.note("MTBF", cadence.mtbf_of_nodes_s(nodes, rate), "s", "from nodes and failures")
    rate = cadence.FAILURES_PER_1000_NODE_DAYS
    book.note("failures", rate, "per 1000 node-days", _LLAMA3, assumed=True)
    mtbf_s = cadence.mtbf_of_nodes_s(nodes)
    if recorded.failures is None:
        return book.note("MTBF", mtbf_s, "s", "from nodes and failures")
    mtbf_s = cadence.learned_mtbf_s(mtbf_s, failed, recorded.up_s)
    return book.note("MTBF", mtbf_s, "s", f"{seen}, and the rate above as a prior")


def _costs(given: CadenceInputs, recorded: Recorded, book: _Book) -> Costs:
    """The costs. If the stall is known and the write time is not, training is assumed to wait for all of the
    write. A recorded repair includes the restore.
    """
    if given.stall_s is None and recorded.stall_s is None:
        write = SAVE_S - STALL_S, BYTECHECKPOINT
    else:
        write = 0.0, WAITED_FOR
    stall_s = book.time("stall", given.stall_s, recorded.stall_s, (STALL_S, BYTECHECKPOINT))
    write_s = book.time("write", given.write_s, recorded.write_s, write)
    restore_s = book.time("restore", given.restore_s, recorded.restore_s, (0.0, "counted as downtime"))
    repair_s = None if recorded.repair_s is None else max(0.0, recorded.repair_s - restore_s)
    downtime_s = book.time("downtime", given.downtime_s, repair_s, (DOWNTIME_S, _KOKOLIS_RESTART))
    return Costs(stall_s=stall_s, write_s=write_s, restore_s=restore_s, downtime_s=downtime_s)


# ---- from the record -------------------------------------------------------------------------------------


def read_run(store: Store, run: str) -> Recorded:
    """The values from a run's ledger and its checkpoints."""
    told = report(run, fold_run(store, run))
    failed = failures(told)
    between_steps = told.saved.between_steps_mean
    step_s = None if told.reference is None else told.reference.step_ns / 1e9
    return Recorded(
        gpus=told.gpus or None,
        failures=failed.count,
        up_s=failed.up_s,
        stall_s=stall_s(told),
        write_s=write_s(store, run),
        repair_s=failed.repair_s_mean,
        restore_s=told.saved.restore_s_mean,
        step_s=step_s,
        step_source=f"{told.basis} from its own steps" if told.basis else RECORDED,
        work_s=between_steps * step_s if between_steps and step_s else None,
        usd_per_gpu_hour=told.usd_per_gpu_hour,
        chip=told.chip,
    )
