"""node_exporter: its README says what is on by default. mountstats, pcidevice and ethtool are off."""

import numpy as np

from bench.exam import noise
from bench.exam.names import host
from bench.exam.plant import FILER, FILER_ADDRESS, TICK_S, Array, Plant
from bench.exam.scrapes import Labels, Samples, Scrape, events

PORT_BYTES_S = 18e9


def _node_labels(plant: Plant) -> list[Labels]:
    return [{"instance": f"{host(plant, node)}:9100", "job": "node"} for node in range(plant.nodes)]


def ports(plant: Plant, samples: Samples, scrape: Scrape) -> None:
    rng = plant.rng
    base = _node_labels(plant)
    labels = [
        {**base[node], "device": f"mlx5_{port}", "port": "1"}
        for node in range(plant.nodes)
        for port in range(8)
    ]
    of = np.repeat(np.arange(plant.nodes), 8).tolist()

    def flat(array: Array) -> Array:
        return array.reshape(len(plant.t), -1)

    load = np.repeat(plant.intensity[:, ::8], 8, 1)
    moved = PORT_BYTES_S * (plant.spec.step_s / plant.pace_s())[:, None] * load
    moved = moved * rng.normal(1, 0.02, moved.shape)
    trained = samples.at(scrape, of, flat(plant.port_trained))
    samples.gauge("default", "node_infiniband_state_id", scrape, of, labels, np.full_like(trained, 4.0))
    samples.gauge(
        "default", "node_infiniband_physical_state_id", scrape, of, labels, np.full_like(trained, 5.0)
    )
    samples.gauge("default", "node_infiniband_rate_bytes_per_second", scrape, of, labels, 5e10 * trained)

    def count(name: str, rates: Array, start: float | Array = 0.0) -> None:
        samples.counter(
            "default",
            f"node_infiniband_{name}_total",
            scrape,
            of,
            labels,
            rates=rates,
            start=start,
            whole=True,
        )

    old = rng.poisson(3, len(labels)).astype(float)
    errors = flat(plant.symbol_errors)
    count("port_data_transmitted_bytes", moved, 1e14)
    count("port_data_received_bytes", moved, 1e14)
    count("port_packets_transmitted", moved / 4_200, 3e10)
    count("port_packets_received", moved / 4_200, 3e10)
    count("link_downed", np.zeros_like(moved), (old > 5).astype(float))
    count("link_error_recovery", events(rng, flat(plant.port_recoveries)), old)
    if plant.spec.fabric == "ib":
        count("symbol_error", events(rng, errors + 2e-5), old * 4)
        count("port_errors_received", events(rng, errors * 0.02), old)
        count("port_transmit_wait", flat(plant.port_wait) * 2.5e8 * rng.uniform(0.5, 1.6, moved.shape), 1e9)
        count("port_discards_transmitted", np.zeros_like(moved), 0.0)
        count("local_link_integrity_errors", events(rng, errors * 0.001), 0.0)
        count("port_receive_remote_physical_errors", np.zeros_like(moved), 0.0)
        count("packet_sequence_errors", events(rng, errors * 0.01), 0.0)
    else:
        marked = flat(plant.ecn) + 4.0
        count("np_ecn_marked_roce_packets_received", events(rng, marked * 30), 1e6)
        count("np_cnp_packets_sent", events(rng, marked), 1e5)
        count("rp_cnp_packets_handled", events(rng, marked), 1e5)
        count("rx_icrc_encapsulated_errors", events(rng, errors), old)
        count("out_of_sequence_packets_received", events(rng, errors * 0.9), old)
        count("packet_sequence_errors", events(rng, errors * 0.9), old)
        count("local_ack_timeout_errors", events(rng, errors * 0.02), old)
        count("roce_slow_restart", events(rng, errors * 0.05), 0.0)
        count("roce_adp_retransmits", events(rng, errors * 0.5), 0.0)
        names = [{**base[of[i]], "device": f"ens{i % 8}np0"} for i in range(len(labels))]
        for name, rates in (("rx_prio3_pause", marked * 0.05), ("tx_prio3_pause", flat(plant.ecn) * 0.4)):
            samples.counter(
                "full", f"node_ethtool_{name}", scrape, of, names, rates=events(rng, rates), whole=True
            )


def hosts(plant: Plant, samples: Samples, scrape: Scrape) -> None:
    rng, labels, of = plant.rng, _node_labels(plant), list(range(plant.nodes))
    shape = plant.cpu_wait.shape

    def count(
        name: str,
        rates: Array,
        start: float | Array = 1e4,
        extra: Labels | None = None,
        *,
        whole: bool = False,
    ) -> None:
        these = [{**one, **(extra or {})} for one in labels]
        samples.counter("default", f"node_{name}", scrape, of, these, rates=rates, start=start, whole=whole)

    def gauge(name: str, values: Array, extra: Labels | None = None) -> None:
        these = [{**one, **(extra or {})} for one in labels]
        samples.gauge("default", f"node_{name}", scrape, of, these, samples.at(scrape, of, values))

    noises = noise.Hosts(rng, shape)
    cpu = np.clip(plant.cpu_wait * rng.uniform(0.7, 1.3, shape) + noises.pressure("cpu"), 0, 1)
    io = np.clip(plant.io_wait * rng.uniform(0.7, 1.3, shape) + noises.pressure("io"), 0, 1)
    memory = np.clip(plant.mem_wait * rng.uniform(0.7, 1.3, shape) + noises.pressure("memory"), 0, 1)
    count("pressure_cpu_waiting_seconds_total", cpu)
    count("pressure_io_waiting_seconds_total", io)
    count("pressure_io_stalled_seconds_total", io * 0.6)
    count("pressure_memory_waiting_seconds_total", memory)
    count("pressure_memory_stalled_seconds_total", memory * 0.5)
    gauge("load1", plant.load * rng.uniform(0.85, 1.2, shape))
    running = np.clip(plant.load / 192, 0, 1)
    for mode, share in (
        ("user", 0.8 * running),
        ("system", 0.12 * running),
        ("iowait", 0.2 * io),
        ("idle", 1 - running),
    ):
        for cpu_number in ("0", "1"):
            count(
                "cpu_seconds_total",
                share * rng.uniform(0.8, 1.1, shape),
                1e5,
                {"cpu": cpu_number, "mode": mode},
            )
    busy = np.clip(plant.disk_busy * rng.uniform(0.5, 1.6, shape) + noises.disk(), 0, 1)
    # Little's law: requests a second are those under way over the time of each.
    wait_s = plant.disk_await_ms * 1e-3 * rng.uniform(0.8, 1.25, shape)
    under_way = np.where(busy > 0.9, busy / np.maximum(0.02, 1.02 - busy), busy)
    rate = under_way / wait_s
    disk = {"device": "nvme0n1"}
    count("disk_io_time_seconds_total", busy, 1e4, disk)
    count("disk_reads_completed_total", rate * 0.3, 1e7, disk, whole=True)
    count("disk_writes_completed_total", rate * 0.7, 1e7, disk, whole=True)
    count("disk_read_time_seconds_total", rate * 0.3 * wait_s, 1e4, disk)
    count("disk_write_time_seconds_total", rate * 0.7 * wait_s, 1e4, disk)
    place = {"device": "/dev/nvme0n1p1", "fstype": "xfs", "mountpoint": "/local"}
    gauge("filesystem_avail_bytes", plant.disk_free * 7.6e12, place)
    gauge("filesystem_size_bytes", np.full(shape, 7.6e12), place)
    root = {"device": "/dev/md0", "fstype": "ext4", "mountpoint": "/"}
    gauge("filesystem_avail_bytes", np.full(shape, 3.1e11), root)
    gauge("filesystem_size_bytes", np.full(shape, 4.2e11), root)
    count("vmstat_pswpin", events(rng, plant.swap * 0.6), 0.0, whole=True)
    count("vmstat_pswpout", events(rng, plant.swap), 0.0, whole=True)
    count("vmstat_pgmajfault", events(rng, noises.major_faults() + plant.swap * 0.5), 1e5, whole=True)
    gauge("memory_MemTotal_bytes", np.full(shape, 2.16e12))
    gauge(
        "memory_MemAvailable_bytes", 2.16e12 * np.clip(plant.mem_free + rng.normal(0, 0.004, shape), 0.002, 1)
    )
    gauge("memory_SwapTotal_bytes", np.full(shape, 6.4e10))
    gauge("memory_SwapFree_bytes", 6.4e10 - np.minimum(6e10, np.cumsum(plant.swap, 0) * TICK_S * 4096 * 0.2))
    gauge("timex_offset_seconds", plant.clock_offset_s + rng.normal(0, 1e-5, shape))
    gauge("timex_sync_status", np.ones(shape))
    gauge("hwmon_temp_celsius", 44 + 0.5 * (plant.room_c[:, plant.rack_of] - 22) + rng.normal(0, 1, shape),
          {"chip": "pci0000:00_0000:00:18_3", "sensor": "temp1"})  # fmt: skip
    count("netstat_Tcp_RetransSegs", events(rng, np.full(shape, 0.2)), 1e5, whole=True)
    count("context_switches_total", 4e4 * noises.relative("context_switches"), 1e10)
    for index, kernel in enumerate(dict.fromkeys(plant.kernel)):
        these = [
            {
                **one,
                "nodename": plant.node_name(node),
                "release": kernel,
                "sysname": "Linux",
                "machine": "x86_64",
            }
            for node, one in enumerate(labels)
        ]
        ones = np.ones(scrape.times_s.shape)
        if plant.kernel[0] != plant.kernel[1]:
            is_new = scrape.times_s >= plant.onset_s
            ones = np.where(is_new == bool(index), 1.0, np.nan)
        samples.gauge("default", "node_uname_info", scrape, of, these, ones)
    _pci(plant, samples, scrape)


def _pci(plant: Plant, samples: Samples, scrape: Scrape) -> None:
    base, of = _node_labels(plant), plant.node_of.tolist()
    labels = [
        {
            **base[gpu // 8],
            "segment": "0000",
            "bus": f"{0x1B + 0x10 * (gpu % 8):02x}",
            "device": "00",
            "function": "0",
        }
        for gpu in range(plant.gpus)
    ]
    width, gen = samples.at(scrape, of, plant.pcie_width), samples.at(scrape, of, plant.pcie_gen)
    shown = {
        "current_link_width": width,
        "max_link_width": np.full_like(width, 16.0),
        "current_link_transfers_per_second": 1e9 * 2.0**gen,
        "max_link_transfers_per_second": np.full_like(gen, 3.2e10),
    }
    for name, values in shown.items():
        samples.gauge("full", f"node_pcidevice_{name}", scrape, of, labels, values)


def nfs(plant: Plant, samples: Samples, scrape: Scrape) -> None:
    """One mount over NFS. mountstats is off by default; the count of calls sent again is on."""
    rng, labels, of = plant.rng, _node_labels(plant), list(range(plant.nodes))
    shape = plant.cpu_wait.shape
    ours = np.zeros(shape)
    ours[:, : plant.run_nodes] = (plant.spec.step_s / plant.pace_s())[:, None]
    reads, writes = 180 * ours + 0.5, 25 * ours + 0.2
    reads[:, plant.run_nodes :] += 120 * plant.filer_others[:, None]
    writes[:, plant.run_nodes :] += 500 * (plant.filer_others[:, None] - plant.filer_others.min())
    resent = events(rng, plant.retransmissions[:, None] * (ours > 0) + 1e-4)
    samples.counter(
        "default", "node_nfs_rpc_retransmissions_total", scrape, of, labels, rates=resent, whole=True
    )
    calls = reads + writes
    samples.counter("default", "node_nfs_rpcs_total", scrape, of, labels, rates=calls, start=1e8, whole=True)
    for operation, rate, mean_ms in (("READ", reads, plant.read_ms), ("WRITE", writes, plant.write_ms)):
        these = [
            {
                **one,
                "export": f"{FILER}:/train",
                "mountaddr": FILER_ADDRESS,
                "operation": operation,
                "protocol": "tcp",
            }
            for one in labels
        ]
        response = rate * mean_ms[:, None] * 1e-3 * rng.uniform(0.85, 1.2, shape)
        queue = rate * np.maximum(0.02, 0.3 * (mean_ms[:, None] - 2)) * 1e-3 * rng.uniform(0.8, 1.2, shape)
        shown = {
            "requests": rate,
            "transmissions": rate + resent,
            "major_timeouts": np.zeros(shape),
            "response_time_seconds": response,
            "queue_time_seconds": queue,
            "request_time_seconds": response + queue,
        }
        for name, rates in shown.items():
            samples.counter(
                "full",
                f"node_mountstats_nfs_operations_{name}_total",
                scrape,
                of,
                these,
                rates=rates,
                start=1e6,
            )
