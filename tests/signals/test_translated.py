"""AMD's metrics under the names that the detectors read, in their units."""

import numpy as np
import pytest

from holdfast.signals.catalogue import CATALOGUE, describe
from holdfast.signals.frame import Frame, Labels, per_second
from holdfast.signals.naming import subject_of
from holdfast.signals.quality import inspect
from holdfast.signals.translated import TRANSLATIONS, TranslatedSource

S = 10**9
AMD: Labels = {"hostname": "n1", "gpu_id": "3", "card_model": "MI300X"}


class Source:
    """Series with labels and values at every tenth second."""

    def __init__(self, **series: tuple[Labels, list[float]]) -> None:
        self._series = series

    def metrics(self) -> tuple[str, ...]:
        return tuple(sorted(self._series))

    def frame(self, metric: str, window_ns: tuple[int, int]) -> Frame | None:
        if metric not in self._series:
            return None
        labels, values = self._series[metric]
        subject = subject_of(describe(metric), labels)
        assert subject is not None
        return Frame(
            metric=metric,
            kind=describe(metric).kind,
            subjects=(subject,),
            labels=(labels,),
            times_ns=np.arange(len(values), dtype=np.int64) * 10 * S,
            values=np.array(values)[:, None],
        )


def read(metric: str, **series: tuple[Labels, list[float]]) -> Frame:
    source = TranslatedSource(Source(**series))
    assert metric in source.metrics()
    frame = source.frame(metric, (0, 100 * S))
    assert frame is not None
    assert frame.metric == metric
    assert frame.kind == describe(metric).kind
    return frame


@pytest.mark.parametrize(
    ("name", "labels", "value", "metric", "turned"),
    [
        ("gpu_junction_temperature", {}, 71, "DCGM_FI_DEV_GPU_TEMP", 71),
        ("amd_gpu_junction_temperature", {}, 71, "DCGM_FI_DEV_GPU_TEMP", 71),
        ("gpu_energy_consumed", {}, 5e9, "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 5e6),
        ("gpu_clock", {"clock_type": "system"}, 2100, "DCGM_FI_DEV_SM_CLOCK", 2100),
        ("gpu_clock", {"clock_type": "memory"}, 900, "DCGM_FI_DEV_MEM_CLOCK", 900),
        ("pcie_speed", {}, 32, "DCGM_FI_DEV_PCIE_LINK_GEN", 5),
        ("pcie_speed", {}, 16, "DCGM_FI_DEV_PCIE_LINK_GEN", 4),
        ("pcie_speed", {}, 2.5, "DCGM_FI_DEV_PCIE_LINK_GEN", 1),
        ("amd_gpu_power_cap", {"gpu_power_cap": "3"}, 750e6, "DCGM_FI_DEV_POWER_MGMT_LIMIT", 750),
        ("amd_gpu_SCLK", {"gpu_SCLK": "3"}, 2.1e9, "DCGM_FI_DEV_SM_CLOCK", 2100),
        ("amd_gpu_current_temperature", {"gpu_current_temperature": "3"}, 71e3, "DCGM_FI_DEV_GPU_TEMP", 71),
    ],
)
def test_values_are_in_the_units_that_are_read(
    name: str, labels: Labels, value: float, metric: str, turned: float
) -> None:
    frame = read(metric, **{name: ({**AMD, **labels}, [value, value])})
    assert frame.subjects == ("n1.3",)
    assert frame.values[-1, 0] == pytest.approx(turned)


def test_a_total_over_a_link_becomes_a_rate() -> None:
    frame = read("DCGM_FI_PROF_NVLINK_TX_BYTES", gpu_xgmi_link_tx=(AMD, [0.0, 1e6, 3e6]))
    assert frame.values[1:, 0].tolist() == pytest.approx([1e5 * 1024, 2e5 * 1024])


def test_a_share_of_the_time_becomes_the_time() -> None:
    name = "gpu_violation_socket_thermal_residency_percentage"
    frame = read("DCGM_FI_DEV_THERMAL_VIOLATION", **{name: (AMD, [0.0, 50.0, 50.0, 100.0])})
    inspected = inspect(frame)
    assert inspected.flaws == ()
    assert (per_second(inspected.frame).values[1:, 0] / 1e9).tolist() == pytest.approx([0.5, 0.5, 1.0])


def test_a_cluster_may_have_both() -> None:
    frame = read(
        "DCGM_FI_DEV_GPU_TEMP",
        DCGM_FI_DEV_GPU_TEMP=({"hostname": "n0", "gpu": "0"}, [50.0, 51.0]),
        gpu_junction_temperature=(AMD, [70.0, 71.0]),
        gpu_edge_temperature=(AMD, [60.0, 61.0]),  # of the same GPU: what comes first in the table counts
    )
    assert frame.subjects == ("n0.0", "n1.3")
    assert frame.values.tolist() == [[50.0, 70.0], [51.0, 71.0]]


def test_the_table_is_in_the_catalogue() -> None:
    assert {name for one in TRANSLATIONS for name in (one.name, one.to)} <= CATALOGUE.keys()
