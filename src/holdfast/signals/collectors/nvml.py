"""GPUs through NVIDIA's management library, under dcgm-exporter's names, units and labels.

This covers machines without the exporter. Values that a GPU, its driver or the binding in use does not
provide are left out.
"""

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

from holdfast.record.clock import Clock
from holdfast.record.kernel import pci_address
from holdfast.signals.collectors import Unavailable
from holdfast.signals.frame import Labels, Reading

PREFIX = "DCGM_FI_DEV_"
GPUS_MAX = 64
MILLI = 1000
MEBIBYTE = 2**20
CLOCK_EVENTS = {
    0x1: "gpu_idle",
    0x2: "clocks_setting",
    0x4: "power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "hw_power_brake",
    0x100: "display_clocks",
}
"""Reasons for a low clock, by bit, under dcgm-exporter's names."""
TRANSFERS_PER_SECOND = {1: 2.5e9, 2: 5e9, 3: 8e9, 4: 16e9, 5: 32e9, 6: 64e9}
"""Of a PCIe lane, by generation."""

_UNION_PARTS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""Which part of NVML's union holds a field's value, by the type that it names."""

Library = Any
"""`pynvml`, which has no types, or a substitute."""
Ask = Callable[[Library, Any], float | None]
Asked = tuple[str, Ask]
"""A metric, and the library call that reads it for one GPU."""


def _field(identity: str) -> Ask:
    """A value without a function of its own."""

    def ask(nvml: Library, gpu: Any) -> float | None:
        answer = nvml.nvmlDeviceGetFieldValues(gpu, [getattr(nvml, identity)])[0]
        if answer.nvmlReturn != nvml.NVML_SUCCESS:
            return None
        return float(getattr(answer.value, _UNION_PARTS[answer.valueType]))

    return ask


def _memory(part: str) -> Ask:
    return lambda nvml, gpu: (
        float(getattr(nvml.nvmlDeviceGetMemoryInfo(gpu, version=nvml.nvmlMemory_v2), part)) / MEBIBYTE
    )


def _ecc(error: str, counter: str) -> Ask:
    return lambda nvml, gpu: float(
        nvml.nvmlDeviceGetTotalEccErrors(gpu, getattr(nvml, error), getattr(nvml, counter))
    )


def _remapped(index: int) -> Ask:
    """0: rows remapped for corrected errors; 1: for others; 2: whether some wait for a reset; 3: failures."""
    return lambda nvml, gpu: float(nvml.nvmlDeviceGetRemappedRows(gpu)[index])


def _violation(policy: str) -> Ask:
    """Time with a low clock, in nanoseconds."""
    return lambda nvml, gpu: float(
        nvml.nvmlDeviceGetViolationStatus(gpu, getattr(nvml, policy)).violationTime
    )


def _utilisation(part: str) -> Ask:
    return lambda nvml, gpu: float(getattr(nvml.nvmlDeviceGetUtilizationRates(gpu), part))


_CORRECTED, _UNCORRECTED = "NVML_MEMORY_ERROR_TYPE_CORRECTED", "NVML_MEMORY_ERROR_TYPE_UNCORRECTED"
_VOLATILE, _AGGREGATE = "NVML_VOLATILE_ECC", "NVML_AGGREGATE_ECC"

DEVICE_METRICS: tuple[Asked, ...] = (
    ("SM_CLOCK", lambda nvml, gpu: float(nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM))),
    ("MEM_CLOCK", lambda nvml, gpu: float(nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_MEM))),
    ("GPU_TEMP", lambda nvml, gpu: float(nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU))),
    ("MEMORY_TEMP", _field("NVML_FI_DEV_MEMORY_TEMP")),
    ("POWER_USAGE", lambda nvml, gpu: nvml.nvmlDeviceGetPowerUsage(gpu) / MILLI),
    ("POWER_MGMT_LIMIT", lambda nvml, gpu: nvml.nvmlDeviceGetPowerManagementLimit(gpu) / MILLI),
    ("ENFORCED_POWER_LIMIT", lambda nvml, gpu: nvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / MILLI),
    ("FAN_SPEED", lambda nvml, gpu: float(nvml.nvmlDeviceGetFanSpeed(gpu))),
    ("PCIE_LINK_GEN", lambda nvml, gpu: float(nvml.nvmlDeviceGetCurrPcieLinkGeneration(gpu))),
    ("PCIE_MAX_LINK_GEN", lambda nvml, gpu: float(nvml.nvmlDeviceGetMaxPcieLinkGeneration(gpu))),
    ("PCIE_LINK_WIDTH", lambda nvml, gpu: float(nvml.nvmlDeviceGetCurrPcieLinkWidth(gpu))),
    ("PCIE_MAX_LINK_WIDTH", lambda nvml, gpu: float(nvml.nvmlDeviceGetMaxPcieLinkWidth(gpu))),
    ("TOTAL_ENERGY_CONSUMPTION", lambda nvml, gpu: float(nvml.nvmlDeviceGetTotalEnergyConsumption(gpu))),
    ("GPU_UTIL", _utilisation("gpu")),
    ("MEM_COPY_UTIL", _utilisation("memory")),
    ("FB_FREE", _memory("free")),
    ("FB_USED", _memory("used")),
    ("FB_RESERVED", _memory("reserved")),
    ("PCIE_REPLAY_COUNTER", lambda nvml, gpu: float(nvml.nvmlDeviceGetPcieReplayCounter(gpu))),
    ("ECC_SBE_VOL_TOTAL", _ecc(_CORRECTED, _VOLATILE)),
    ("ECC_DBE_VOL_TOTAL", _ecc(_UNCORRECTED, _VOLATILE)),
    ("ECC_SBE_AGG_TOTAL", _ecc(_CORRECTED, _AGGREGATE)),
    ("ECC_DBE_AGG_TOTAL", _ecc(_UNCORRECTED, _AGGREGATE)),
    ("CORRECTABLE_REMAPPED_ROWS", _remapped(0)),
    ("UNCORRECTABLE_REMAPPED_ROWS", _remapped(1)),
    ("ROW_REMAP_FAILURE", _remapped(3)),
    ("NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", _field("NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL")),
    ("NVLINK_CRC_DATA_ERROR_COUNT_TOTAL", _field("NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL")),
    ("NVLINK_REPLAY_ERROR_COUNT_TOTAL", _field("NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL")),
    ("NVLINK_RECOVERY_ERROR_COUNT_TOTAL", _field("NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL")),
    ("POWER_VIOLATION", _violation("NVML_PERF_POLICY_POWER")),
    ("THERMAL_VIOLATION", _violation("NVML_PERF_POLICY_THERMAL")),
    ("SYNC_BOOST_VIOLATION", _violation("NVML_PERF_POLICY_SYNC_BOOST")),
    ("BOARD_LIMIT_VIOLATION", _violation("NVML_PERF_POLICY_BOARD_LIMIT")),
    ("LOW_UTIL_VIOLATION", _violation("NVML_PERF_POLICY_LOW_UTILIZATION")),
    ("RELIABILITY_VIOLATION", _violation("NVML_PERF_POLICY_RELIABILITY")),
)
"""By the end of dcgm-exporter's name."""

_LINK_METRICS: tuple[Asked, ...] = (
    ("current_link_width", lambda nvml, gpu: float(nvml.nvmlDeviceGetCurrPcieLinkWidth(gpu))),
    ("max_link_width", lambda nvml, gpu: float(nvml.nvmlDeviceGetMaxPcieLinkWidth(gpu))),
    (
        "current_link_transfers_per_second",
        lambda nvml, gpu: TRANSFERS_PER_SECOND.get(nvml.nvmlDeviceGetCurrPcieLinkGeneration(gpu)),
    ),
    (
        "max_link_transfers_per_second",
        lambda nvml, gpu: TRANSFERS_PER_SECOND.get(nvml.nvmlDeviceGetMaxPcieLinkGeneration(gpu)),
    ),
)
"""By the end of node_exporter's name."""


class NvmlCollector:
    """Every GPU of this machine. library: `pynvml` unless given."""

    name = "NVML"

    def __init__(self, *, clock: Clock, host: str, library: Library | None = None) -> None:
        self._clock = clock
        self._host = host
        self._library = library
        self._begun = False
        self._labels: dict[str, Labels] = {}

    def collect(self) -> list[Reading]:
        nvml = self._begin()
        at_ns = self._clock.now_ns()
        try:
            count = min(nvml.nvmlDeviceGetCount(), GPUS_MAX)
        except nvml.NVMLError as error:
            self.close()
            raise Unavailable(f"NVML cannot list the GPUs: {error}.") from None
        return [reading for index in range(count) for reading in self._gpu(nvml, index, at_ns)]

    def gpus(self) -> dict[str, Labels]:
        """The labels of the GPUs seen so far, by PCI address."""
        return dict(self._labels)

    def close(self) -> None:
        if self._begun and self._library is not None:
            self._begun = False
            self._library.nvmlShutdown()

    def _begin(self) -> Library:
        if self._library is None:
            self._library = import_module("pynvml")
        if not self._begun:
            try:
                self._library.nvmlInit()
            except self._library.NVMLError as error:
                raise Unavailable(
                    f"This machine has no GPU that NVML can see: {error}.",
                    hint="Try `nvidia-smi`; is the driver loaded?",
                ) from None
            self._begun = True
        return self._library

    def _gpu(self, nvml: Library, index: int, at_ns: int) -> Iterator[Reading]:
        try:
            gpu = nvml.nvmlDeviceGetHandleByIndex(index)
            labels, address = _labels(nvml, gpu, index, self._host)
        except nvml.NVMLError as error:
            # A GPU that fell off the bus does not even give its name; only its number is known.
            labels = {"gpu": str(index), "hostname": self._host, "instance": self._host}
            yield _reading(PREFIX + "SM_CLOCK", labels, at_ns, None, word=str(error))
            return
        if address:
            self._labels[address] = labels
        for name, ask in DEVICE_METRICS:
            if (value := _answer(nvml, gpu, ask)) is not None:
                yield _reading(PREFIX + name, labels, at_ns, value)
        yield from _clock_events(nvml, gpu, labels, at_ns)
        if address:
            yield from _link(nvml, gpu, address, self._host, at_ns)


def _labels(nvml: Library, gpu: Any, index: int, host: str) -> tuple[Labels, str]:
    """The labels as in dcgm-exporter, and the PCI address in our form."""
    bus = _text(nvml.nvmlDeviceGetPciInfo(gpu).busId)
    labels = {
        "gpu": str(index),
        "UUID": _text(nvml.nvmlDeviceGetUUID(gpu)),
        "pci_bus_id": bus,
        "device": f"nvidia{nvml.nvmlDeviceGetMinorNumber(gpu)}",
        "modelName": _text(nvml.nvmlDeviceGetName(gpu)),
        "hostname": host,
        "instance": host,
    }
    return labels, pci_address(bus)


def _text(answer: str | bytes) -> str:
    """Older bindings answer in bytes."""
    return answer.decode("utf-8", "replace") if isinstance(answer, bytes) else answer


def _clock_events(nvml: Library, gpu: Any, labels: Labels, at_ns: int) -> Iterator[Reading]:
    """1 for each present reason for a low clock, 0 for the others."""
    reasons = _answer(nvml, gpu, lambda nvml, gpu: nvml.nvmlDeviceGetCurrentClocksEventReasons(gpu))
    if reasons is None:
        return
    for bit, event in CLOCK_EVENTS.items():
        held = float(bool(int(reasons) & bit))
        yield _reading("DCGM_EXP_CLOCK_EVENTS_COUNT", {**labels, "clock_event": event}, at_ns, held)


def _link(nvml: Library, gpu: Any, address: str, host: str, at_ns: int) -> Iterator[Reading]:
    segment, bus, rest = address.split(":")
    device, _, function = rest.partition(".")
    labels = {"segment": segment, "bus": bus, "device": device, "function": function, "instance": host}
    for name, ask in _LINK_METRICS:
        if (value := _answer(nvml, gpu, ask)) is not None:
            yield _reading(f"node_pcidevice_{name}", labels, at_ns, value)


def _answer(nvml: Library, gpu: Any, ask: Ask) -> float | None:
    """None if this GPU, its driver or this version of the binding does not know."""
    try:
        return ask(nvml, gpu)
    except (nvml.NVMLError, AttributeError, IndexError):
        return None


def _reading(metric: str, labels: Labels, at_ns: int, value: float | None, word: str = "") -> Reading:
    return Reading(metric=metric, labels=labels, at_ns=at_ns, value=value, word=word)
