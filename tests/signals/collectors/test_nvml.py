"""GPUs through NVML: the answers of a real H200, recorded while it multiplied matrices at its power limit."""

import re
from typing import Any

import pytest

from holdfast.record.clock import ManualClock
from holdfast.signals.catalogue import CATALOGUE
from holdfast.signals.collectors import Unavailable
from holdfast.signals.collectors.nvml import DEVICE_METRICS, NvmlCollector
from holdfast.signals.frame import Reading

UNRECORDED = {"POWER_MGMT_LIMIT", "ENFORCED_POWER_LIMIT", "FAN_SPEED"}


def collect(nvml: Any) -> list[Reading]:
    collector = NvmlCollector(clock=ManualClock(9), host="n17", library=nvml)
    readings = collector.collect()
    collector.close()
    return readings


def values(readings: list[Reading]) -> dict[str, float | None]:
    return {reading.metric + reading.labels.get("clock_event", ""): reading.value for reading in readings}


def test_a_loaded_h200_is_read_in_the_exporters_units(nvml: Any) -> None:
    found = values(collect(nvml))
    assert found["DCGM_FI_DEV_SM_CLOCK"] == 1425
    assert found["DCGM_FI_DEV_GPU_TEMP"] == 58
    assert found["DCGM_FI_DEV_MEMORY_TEMP"] == 48
    assert found["DCGM_FI_DEV_POWER_USAGE"] == pytest.approx(690, abs=20)
    assert found["DCGM_FI_DEV_GPU_UTIL"] == 100
    assert found["DCGM_FI_DEV_FB_USED"] == pytest.approx(2162.8, abs=1)
    assert found["DCGM_FI_DEV_FB_RESERVED"] == pytest.approx(615.1, abs=1)
    assert found["DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"] == pytest.approx(13.75e6, rel=0.01)
    assert found["DCGM_FI_DEV_POWER_VIOLATION"] == pytest.approx(15.9e9, rel=0.02)
    assert found["DCGM_FI_DEV_PCIE_REPLAY_COUNTER"] == 1
    assert found["DCGM_FI_DEV_ECC_DBE_VOL_TOTAL"] == 0
    assert found["DCGM_EXP_CLOCK_EVENTS_COUNTpower_cap"] == 1
    assert found["DCGM_EXP_CLOCK_EVENTS_COUNThw_thermal"] == 0
    assert found["node_pcidevice_current_link_width"] == 16
    assert found["node_pcidevice_current_link_transfers_per_second"] == 32e9


def test_every_metric_is_in_the_catalogue_but_what_this_gpu_lacks(nvml: Any) -> None:
    readings = collect(nvml)
    assert {reading.metric for reading in readings} <= CATALOGUE.keys()
    told = {reading.metric.removeprefix("DCGM_FI_DEV_") for reading in readings}
    # A GPU that is alone in its machine has no NVLinks; of limits and fans nothing was recorded.
    assert {name for name, _ in DEVICE_METRICS} - told == UNRECORDED | {
        name for name, _ in DEVICE_METRICS if name.startswith("NVLINK_")
    }


def test_labels_are_the_exporters(nvml: Any) -> None:
    readings = collect(nvml)
    labels = readings[0].labels
    assert re.fullmatch("GPU-[0-9a-f-]{36}", labels["UUID"])
    assert {**labels, "UUID": ""} == {
        "gpu": "0",
        "UUID": "",
        "pci_bus_id": "00000000:00:06.0",
        "device": "nvidia0",
        "modelName": "NVIDIA H200",
        "hostname": "n17",
        "instance": "n17",
    }
    assert readings[-1].labels == {
        "segment": "0000",
        "bus": "00",
        "device": "06",
        "function": "0",
        "instance": "n17",
    }
    assert {reading.at_ns for reading in readings} == {9}


def test_gpus_are_known_by_their_pci_address(nvml: Any) -> None:
    collector = NvmlCollector(clock=ManualClock(), host="n17", library=nvml)
    assert collector.gpus() == {}
    collector.collect()
    assert collector.gpus()["0000:00:06.0"]["gpu"] == "0"
    collector.close()


def test_what_a_gpu_does_not_tell_is_left_out(nvml: Any) -> None:
    before = values(collect(nvml)).keys()
    nvml.refused |= {"nvmlDeviceGetRemappedRows", "nvmlDeviceGetViolationStatus", "nvmlDeviceGetFieldValues"}
    left_out = before - values(collect(nvml)).keys()
    assert {name.removeprefix("DCGM_FI_DEV_") for name in left_out} == {
        "MEMORY_TEMP",
        "CORRECTABLE_REMAPPED_ROWS",
        "UNCORRECTABLE_REMAPPED_ROWS",
        "ROW_REMAP_FAILURE",
        "POWER_VIOLATION",
        "THERMAL_VIOLATION",
        "SYNC_BOOST_VIOLATION",
        "BOARD_LIMIT_VIOLATION",
        "LOW_UTIL_VIOLATION",
        "RELIABILITY_VIOLATION",
    }


def test_a_gpu_that_cannot_be_asked_is_told_of_in_a_word(nvml: Any) -> None:
    nvml.refused = {"nvmlDeviceGetHandleByIndex"}
    (reading,) = collect(nvml)
    assert reading.value is None
    assert reading.word == "Not Supported"
    assert reading.labels["gpu"] == "0"


def test_the_library_is_begun_once_and_ended(nvml: Any) -> None:
    collector = NvmlCollector(clock=ManualClock(), host="n17", library=nvml)
    collector.collect()
    collector.collect()
    assert nvml.begun == 1
    collector.close()
    collector.close()
    assert nvml.begun == 0


def test_a_machine_without_a_gpu_says_so_in_one_sentence(nvml: Any) -> None:
    nvml.refused = {"nvmlInit"}
    with pytest.raises(Unavailable) as failure:
        collect(nvml)
    assert (
        failure.value.sentence == "This machine has no GPU that NVML can see: NVML Shared Library Not Found."
    )
