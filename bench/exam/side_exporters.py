"""Beside the hosts: BMCs, switches, cooling units, a DNS probe, inference pools; all only in `full`."""

import numpy as np

from bench.exam.names import host
from bench.exam.plan import RUN
from bench.exam.plant import Array, Plant
from bench.exam.scrapes import Labels, Samples, Scrape, events


def sides(plant: Plant, samples: Samples, horizon_s: float) -> None:
    rng = plant.rng
    bmcs = Scrape(rng, plant.nodes, 30.0, horizon_s)
    of = list(range(plant.nodes))
    base = [{"instance": f"{host(plant, node)}:9290", "job": "ipmi"} for node in of]
    shape = plant.fan.shape

    def bmc(metric: str, values: Array, extra: Labels) -> None:
        samples.gauge(
            "full", metric, bmcs, of, [{**one, **extra} for one in base], samples.at(bmcs, of, values)
        )

    inlet = plant.room_c[:, plant.rack_of]
    bmc(
        "ipmi_temperature_celsius",
        np.rint(inlet + rng.normal(0, 0.3, shape)),
        {"id": "4", "name": "Inlet Temp"},
    )
    for fan in range(4):
        speed = 9_600 if plant.spec.cooling == "air" else 5_200
        # Those that still turn are driven harder; the broken ones hardly turn.
        turning = np.where(plant.fan < 0.95, (0.12 if fan < 2 else 1.25), 1.0)
        rpm = speed * turning * rng.uniform(0.98, 1.02, shape)
        bmc("ipmi_fan_speed_rpm", np.rint(rpm / 60) * 60, {"id": str(30 + fan), "name": f"FAN{fan + 1}"})
    for supply in range(6):
        good = plant.supplies > supply
        bmc("ipmi_sensor_state", np.where(good, 0.0, 2.0), {
            "id": str(60 + supply), "name": f"PS{supply + 1} Status", "type": "Power Supply"})  # fmt: skip
        chassis = [{"instance": "redfish:9610", "job": "redfish", "chassis_id": plant.node_name(node),
                    "power_supply": f"PSU {supply + 1}"} for node in of]  # fmt: skip
        values = samples.at(bmcs, of, np.where(good, 1.0, 3.0))
        samples.gauge("full", "redfish_chassis_power_powersupply_health", bmcs, of, chassis, values)
    racks = Scrape(rng, plant.racks, 30.0, horizon_s)
    of_racks = list(range(plant.racks))
    redfish = {"instance": "redfish:9610", "job": "redfish", "power_supply": "1"}
    shelves = [{**redfish, "chassis_id": f"shelf-{rack:02d}"} for rack in of_racks]
    health = samples.at(racks, of_racks, plant.shelf_health)
    samples.gauge("full", "redfish_chassis_power_powersupply_health", racks, of_racks, shelves, health)
    probe = Scrape(rng, 1, 15.0, horizon_s)
    target = [{"instance": "10.9.0.2:53", "job": "blackbox-dns", "module": "dns_internal"}]
    lookup = samples.at(probe, [0], plant.dns_s[:, None]) * rng.uniform(0.7, 1.6, (len(probe.times_s), 1))
    samples.gauge("full", "probe_dns_lookup_time_seconds", probe, [0], target, lookup)
    samples.gauge("full", "probe_duration_seconds", probe, [0], target, lookup + 0.001)
    samples.gauge("full", "probe_success", probe, [0], target, (lookup < 5.0).astype(float))
    if plant.pool_nodes:
        _pools(plant, samples, horizon_s)
    _switches(plant, samples, horizon_s)
    if plant.spec.cooling == "liquid":
        _cdus(plant, samples, horizon_s)


def _pools(plant: Plant, samples: Samples, horizon_s: float) -> None:
    """Caches from two prefill engines to two decode engines."""
    scrape = Scrape(plant.rng, 1, 10.0, horizon_s)
    a, b, c, d = (plant.node_name(node) for node in plant.pool_nodes)
    labels = [
        {"run": RUN, "source": s, "target": t, "job": "pools"} for s, t in ((a, c), (a, d), (b, c), (b, d))
    ]
    values = samples.at(scrape, [0] * 4, plant.pool_s)
    values = values * plant.rng.uniform(0.85, 1.3, values.shape)
    samples.gauge("full", "holdfast_pool_transfer_seconds", scrape, [0] * 4, labels, values)


def _switches(plant: Plant, samples: Samples, horizon_s: float) -> None:
    if plant.spec.fabric != "ib":
        return
    names = [f"leaf-{i:02d}" for i in range(plant.leaves)] + [f"spine-{i:02d}" for i in range(2)]
    scrape = Scrape(plant.rng, len(names), 30.0, horizon_s)
    of = list(range(len(names)))
    labels = [
        {"instance": "ibexporter:9315", "job": "infiniband", "switch": name, "port": "33"} for name in names
    ]
    waits = np.hstack([plant.leaf_wait, plant.spine_wait]) * 2.5e8
    waits = waits * plant.rng.uniform(0.5, 1.6, waits.shape)
    errors = events(plant.rng, np.hstack([plant.leaf_errors, plant.spine_errors]) + 2e-5)
    prefix = "infiniband_switch_port_"
    samples.counter(
        "full", f"{prefix}transmit_wait_total", scrape, of, labels, rates=waits, start=1e9, whole=True
    )
    samples.counter(
        "full", f"{prefix}symbol_error_total", scrape, of, labels, rates=errors, start=5, whole=True
    )
    recoveries = events(plant.rng, errors * 0.002)
    samples.counter(
        "full", f"{prefix}link_error_recovery_total", scrape, of, labels, rates=recoveries, whole=True
    )


def _cdus(plant: Plant, samples: Samples, horizon_s: float) -> None:
    """Heat is in balance: kW = L/min x K x 0.0698."""
    rng = plant.rng
    scrape = Scrape(rng, plant.loops, 30.0, horizon_s)
    of = list(range(plant.loops))
    labels = [
        {"instance": "densewatch:9700", "job": "densewatch", "cdu": f"cdu-{i:02d}", "protocol": "redfish"}
        for i in of
    ]
    watts = np.stack([plant.power[:, plant.loop_of[plant.node_of] == loop].sum(1) for loop in of], 1)
    heat_kw = watts * 1.05 / 1e3
    healthy_lpm = np.maximum(heat_kw[:1], 10.0) / (9.0 * 0.0698)
    lpm = healthy_lpm * plant.flow * rng.normal(1, 0.006, plant.flow.shape)
    back = plant.supply_c + heat_kw / (lpm * 0.0698)
    shown = {
        "coolant_flow_lpm": lpm,
        "coolant_supply_temp_celsius": plant.supply_c + rng.normal(0, 0.06, lpm.shape),
        "coolant_return_temp_celsius": back + rng.normal(0, 0.06, lpm.shape),
        "heat_removed_kw": heat_kw * rng.normal(1, 0.01, lpm.shape),
        "pump_speed_percent": 62 + 0 * lpm + rng.normal(0, 0.3, lpm.shape),
        "leak_detected": np.zeros_like(lpm),
    }
    for name, values in shown.items():
        samples.gauge("full", f"densewatch_cdu_{name}", scrape, of, labels, samples.at(scrape, of, values))
