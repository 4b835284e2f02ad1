"""A run's metrics for Prometheus: its steps, and where its members' time goes.

The page is made from the coordinator's status at each scrape, in the thread that serves it (pages.py). The
run never waits for it, and an error here affects only the scraper.

A gauge in seconds is the mean over the steps of about a second, or the last step if that took longer.
Otherwise, with steps of milliseconds, a scrape would see one step in a thousand. The counters miss nothing.
"""

import contextlib
from collections.abc import Callable, Iterator

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from holdfast import __version__
from holdfast.run import pages
from holdfast.run.stages import HELD_UP, IN_STEP
from holdfast.run.status import MemberStatus, Status
from holdfast.run.wire import Spent

PATH = "/metrics"

_PARTS = (
    ("compute", "computing its lanes, with the optimizer and all else the script does"),
    ("data", "waiting for its data, as far as that can be told from computing"),
    ("exchange", "in its own part of the reduction"),
    ("wait", "waiting for the other members in the reduction"),
    ("checkpoint", "standing still while its state was copied for a checkpoint"),
)
_RUN = ("run",)
_MEMBER = ("run", "member", "node", "hostname")

Ask = Callable[[], Status]


class RunCollector(Collector):
    """The run's metrics at the moment of a scrape."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    def collect(self) -> Iterator[Metric]:
        status = self._ask()
        stepping = [member for member in status.members if member.alive and member.role == "active"]
        yield from _of_run(status, stepping)
        yield from _of_members(status.run, [member for member in stepping if member.spent[0].steps])

    def describe(self) -> Iterator[Metric]:
        """Describe nothing, so that a registry does not ask for a status before there is one."""
        return iter(())


def _of_run(status: Status, stepping: list[MemberStatus]) -> Iterator[Metric]:
    known = InfoMetricFamily("holdfast_run", "The run, its team and the version of Holdfast.", labels=_RUN)
    known.add_metric([status.run], {"team": status.team, "version": __version__})
    yield known
    steps = CounterMetricFamily("holdfast_run_steps", "Steps committed.", labels=_RUN)
    steps.add_metric([status.run], status.step)
    yield steps
    lanes = sum(len(member.lanes) for member in stepping)
    gauges: tuple[tuple[str, str, float | None], ...] = (
        ("step_seconds", "A step: the mean of the last second's, or the last one.", status.step_s),
        ("steps_planned", "The step that the run is to end with.", status.steps_total),
        ("loss", "Loss of the last step.", status.loss),
        ("checkpoint_seconds", "How long training waited for the last checkpoint.", status.stall_s),
        ("checkpoint_write_seconds", "The last checkpoint, until it was durable.", status.write_s),
        (
            "checkpoint_exposure_steps",
            "Steps since the newest durable checkpoint: the cost of losing all agents.",
            max(0, status.step - status.saved_step) if status.saved_step else None,
        ),
        *_of_proofs(status),
        ("snapshot_seconds", "How long a member waited for the last snapshot in memory.", status.snapshot_s),
        (
            "snapshot_exposure_steps",
            "Steps since the newest snapshot in memory: the cost of losing all members.",
            None if status.snapshot_step is None else max(0, status.step - status.snapshot_step),
        ),
        (
            "mirror_exposure_steps",
            "Steps since the newest snapshot that two nodes have in memory.",
            None if status.mirror_step is None else max(0, status.step - status.mirror_step),
        ),
        ("generation", "Counts changes of the members; 0 before the first step.", status.generation),
        ("members", "Members that take part.", len(stepping)),
        ("nodes", "Nodes that have joined.", sum(node.alive for node in status.nodes)),
        ("lanes", "Lanes of a step.", lanes),
        ("lanes_skipped", "Lanes of the last step that no member computed.", status.lanes_skipped),
    )
    for name, meaning, value in gauges:
        if value is not None:
            gauge = GaugeMetricFamily(f"holdfast_run_{name}", meaning, labels=_RUN)
            gauge.add_metric([status.run], value)
            yield gauge


def _of_proofs(status: Status) -> Iterator[tuple[str, str, float | None]]:
    """Metrics of checkpoints that a fresh process loaded and computed with; empty before the first proof."""
    last = max((moment for _, moment in filter(None, (status.proven, status.refuted))), default=None)
    if status.proven is not None:
        step, moment_ns = status.proven
        yield "checkpoint_proven_step", "Step of the checkpoint that was last proven.", step
        yield (
            "checkpoint_proven_timestamp_seconds",
            "When a checkpoint was last proven: loaded, computed with, and equal to the run's result.",
            moment_ns / 1e9,
        )
    if last is not None:
        is_refuted = status.refuted is not None and status.refuted[1] == last
        yield "checkpoint_refuted", "1 if the last proof of a checkpoint failed.", is_refuted


def _of_members(run: str, members: list[MemberStatus]) -> Iterator[Metric]:
    labels = [[run, member.name, member.node, member.host] for member in members]
    for part, meaning in _PARTS:
        mean = GaugeMetricFamily(
            f"holdfast_member_{part}_seconds", f"Of a step, the time {meaning}.", labels=_MEMBER
        )
        total = CounterMetricFamily(f"holdfast_member_{part}_seconds", f"Time {meaning}.", labels=_MEMBER)
        for label, member in zip(labels, members, strict=True):
            last, before = member.spent
            grown_s, steps = _seconds(last, part) - _seconds(before, part), last.steps - before.steps
            mean.add_metric(label, grown_s / max(1, steps))
            total.add_metric(label, _seconds(last, part))
        yield mean
        yield total
    counters: tuple[tuple[str, str, Callable[[Spent], float]], ...] = (
        ("steps", "Steps that the member has measured.", lambda spent: spent.steps),
        ("gc_seconds", "Time in Python's garbage collector.", lambda spent: spent.collecting_s),
        ("resent_segments", "TCP segments sent to other members again.", lambda spent: spent.resent),
    )
    for name, meaning, read in counters:
        counter = CounterMetricFamily(f"holdfast_member_{name}", meaning, labels=_MEMBER)
        for label, member in zip(labels, members, strict=True):
            counter.add_metric(label, read(member.spent[0]))
        yield counter
    gauges: tuple[tuple[str, str, Callable[[MemberStatus], float]], ...] = (
        ("lanes", "Lanes that the member computes.", lambda member: len(member.lanes)),
        ("waiting", "1 while it waits for others.", lambda member: member.stage in HELD_UP),
        ("in_step", "1 from its first lane to its commit.", lambda member: member.stage in IN_STEP),
    )
    for name, meaning, show in gauges:
        gauge = GaugeMetricFamily(f"holdfast_member_{name}", meaning, labels=_MEMBER)
        for label, member in zip(labels, members, strict=True):
            gauge.add_metric(label, show(member))
        yield gauge


def _seconds(spent: Spent, part: str) -> float:
    seconds: float = getattr(spent, f"{part}_s")
    return seconds


@contextlib.contextmanager
def serving(host: str, port: int, ask: Ask) -> Iterator[str]:
    """Serve the page while the block lasts and yield its URL. Port 0 takes a free one. Raise `InputError` if
    the address cannot be used.
    """
    collector = RunCollector(ask)
    with pages.serving(host, port, {PATH: lambda: page(collector)}) as bound:
        yield url_of(host, bound)


def page(metrics: Collector | CollectorRegistry) -> pages.MetricsPage:
    """The metrics as a page. It is not OpenMetrics, in which a gauge and a counter could not share a name."""
    return pages.MetricsPage(content_type=CONTENT_TYPE_LATEST, body=generate_latest(metrics))


def url_of(host: str, port: int) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{port}{PATH}"
