"""What exporters show of a plant: their names, labels and intervals, and which of it is on by default."""

import numpy as np

from bench.exam import gpu_exporters, host_exporters, side_exporters
from bench.exam.names import host
from bench.exam.plan import RUN
from bench.exam.plant import TICK_S, Array, Plant
from bench.exam.scrapes import Labels, Samples, Scrape


def show(plant: Plant, begin_ns: int) -> Samples:
    samples = Samples(begin_ns, plant.t)
    horizon_s = float(plant.t[-1])
    gpu_s, node_s, run_s = plant.spec.scrape_s
    _run(plant, samples, Scrape(plant.rng, 1, run_s, horizon_s))
    gpus = Scrape(plant.rng, plant.nodes, gpu_s, horizon_s, restarts=int(plant.rng.integers(0, 2)))
    hosts = Scrape(plant.rng, plant.nodes, node_s, horizon_s, restarts=int(plant.rng.integers(0, 2)))
    for scrape in (gpus, hosts):
        _disturb(plant, scrape)
    for node, (begin_s, end_s) in plant.gone.items():
        gpus.silence(node, begin_s, end_s)
        hosts.silence(node, begin_s, end_s)
    if plant.spec.chip == "mi300x":
        gpu_exporters.amd(plant, samples, gpus)
    else:
        gpu_exporters.dcgm(plant, samples, gpus)
    host_exporters.ports(plant, samples, hosts)
    host_exporters.hosts(plant, samples, hosts)
    host_exporters.nfs(plant, samples, hosts)
    side_exporters.sides(plant, samples, horizon_s)
    return samples


def _disturb(plant: Plant, scrape: Scrape) -> None:
    """What was done to the monitoring itself: outages of Prometheus, a new version of the exporters."""
    for _, begin_s, end_s in plant.outages:
        for target in range(plant.nodes):
            scrape.silence(target, begin_s, end_s)
    if plant.rolled_restarts_s is not None:
        for target in range(plant.nodes):
            at_s = plant.rolled_restarts_s + 20.0 * target
            scrape.silence(target, at_s, at_s + 25.0)
            scrape.restart_at[target] = at_s


def _last_step(
    plant: Plant, times_s: Array
) -> "tuple[np.ndarray[tuple[int, ...], np.dtype[np.int64]], Array]":
    """Of each scrape: the last step that was done, and how many were."""
    done = np.searchsorted(plant.step_ended, times_s, side="right")
    return np.maximum(done - 1, 0), done.astype(np.float64)


def _run(plant: Plant, samples: Samples, scrape: Scrape) -> None:
    label: Labels = {"run": RUN, "instance": f"{host(plant, 0)}:9464", "job": "holdfast"}
    times = scrape.times_s[:, 0]
    last, done = _last_step(plant, times)
    shown = np.where(done > 0, plant.step_took[last], np.nan)
    samples.gauge("step", "holdfast_run_step_seconds", scrape, [0], [label], shown[:, None])
    base = float(plant.rng.integers(1_000, 90_000)) if plant.onset != "before" else 0.0
    plant.step_base = int(base)
    samples.gauge("step", "holdfast_run_steps_total", scrape, [0], [label], (done + base)[:, None])
    full = {
        "holdfast_run_members": np.full(len(times), float(plant.members)),
        "holdfast_run_nodes": np.full(len(times), float(plant.run_nodes)),
        "holdfast_run_generation": np.ones(len(times)),
        "holdfast_run_loss": 2.4 - 0.05 * np.log1p(done / 500) + plant.rng.normal(0, 0.01, len(times)),
    }
    if plant.saves:
        ends = np.array([at for _, at, _ in plant.saves])
        stalls = np.array([stall for *_, stall in plant.saves])
        which = np.searchsorted(ends, times, side="right") - 1
        full["holdfast_run_checkpoint_seconds"] = np.where(which >= 0, stalls[which], np.nan)
        writes = (
            1.4 * stalls[which] + plant.write_ms[np.minimum((times / TICK_S).astype(int), len(plant.t) - 1)]
        )
        full["holdfast_run_checkpoint_write_seconds"] = np.where(which >= 0, writes, np.nan)
    for metric, values in full.items():
        samples.gauge("full", metric, scrape, [0], [label], values[:, None])
    _members(plant, samples, scrape, label)


def _members(plant: Plant, samples: Samples, scrape: Scrape, label: Labels) -> None:
    labels = [
        {**label, "member": plant.member_label(m), "node": plant.node_name(int(plant.member_node[m]))}
        for m in range(plant.members)
    ]
    of, columns, there = (
        [0] * plant.members,
        list(range(plant.members)),
        np.ones((len(scrape.times_s), plant.members), bool),
    )
    if plant.replaced:  # the old member's series end, the new one's begin
        old, new, at_s = plant.replaced
        late = scrape.times_s[:, 0] >= at_s
        moved = [m for m in columns if plant.member_node[m] == old]
        name = plant.node_name(new)
        labels += [
            {**labels[m], "member": name + labels[m]["member"][len(name) :], "node": name} for m in moved
        ]
        columns += moved
        of = [0] * len(columns)
        there = np.hstack([there, np.repeat(late[:, None], len(moved), 1)])
        there[:, moved] &= ~late[:, None]
    last, done = _last_step(plant, scrape.times_s[:, 0])
    arrive = plant.step_compute + plant.step_data
    late = arrive.max(1, keepdims=True)
    exchange = plant.step_wire[:, None] * plant.rng.uniform(0.97, 1.0, arrive.shape)
    wait = late - arrive
    if not plant.spec.told:  # inside a collective waiting and sending cannot be told apart
        exchange, wait = exchange + wait, np.zeros_like(wait)
    parts = {
        "compute": plant.step_compute,
        "data": plant.step_data,
        "exchange": exchange,
        "wait": wait,
        "checkpoint": np.broadcast_to(plant.step_save[:, None], arrive.shape),
    }
    there &= (done > 0)[:, None]
    for part, values in parts.items():
        if part == "wait" and not plant.spec.told:
            continue
        shown = np.where(there, values[last][:, columns], np.nan)
        samples.gauge("full", f"holdfast_member_{part}_seconds", scrape, of, labels, shown)
        total = np.where(there, np.cumsum(values, 0)[last][:, columns], np.nan)
        samples.gauge("full", f"holdfast_member_{part}_seconds_total", scrape, of, labels, total)
    gc = np.where(there, np.cumsum(plant.step_gc + 0.002, 0)[last][:, columns], np.nan)
    samples.gauge("full", "holdfast_member_gc_seconds_total", scrape, of, labels, gc)
    count = np.where(there, done[:, None], np.nan)
    samples.gauge("full", "holdfast_member_steps_total", scrape, of, labels, count)
