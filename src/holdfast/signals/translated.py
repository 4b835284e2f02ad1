"""Other makers' metrics under the names that the detectors read: one table of names, units and kinds.

An AMD GPU has a temperature, a power and a clock like an NVIDIA GPU; only names and units differ. Metrics
without a counterpart are not translated, and so not read.
"""

from typing import Literal

import msgspec
import numpy as np

from holdfast.signals.frame import Floats, Frame, joined, per_second
from holdfast.signals.source import Source

How = Literal["value", "rate", "share", "generation"]
"""value: the same, times `scale`. rate: per second, from a total. share: a percentage of the time becomes the
accumulated time. generation: of PCIe, from the rate of a lane.
"""
PREFIXES = ("", "amd_")
"""AMD's exporter uses its names with and without the prefix, depending on version and setting."""
GENERATION_GT_S = (2.5, 5.0, 8.0, 16.0, 32.0, 64.0)
"""Of a PCIe lane, from the first generation on."""
GENERATION_SLACK = 0.9


class Translation(msgspec.Struct, frozen=True, kw_only=True):
    """One metric of another maker, and its counterpart here. only: series with this value of a label."""

    name: str
    to: str
    scale: float = 1.0
    how: How = "value"
    only: tuple[str, str] | None = None


def _amd(name: str, to: str, **more: float | str | tuple[str, str]) -> tuple[Translation, ...]:
    return tuple(
        msgspec.convert({"name": prefix + name, "to": f"DCGM_FI_{to}", **more}, Translation)
        for prefix in PREFIXES
    )


_THERMAL = ("processor_hot", "socket_thermal", "vr_thermal", "hbm_thermal")

TRANSLATIONS: tuple[Translation, ...] = (
    *_amd("gpu_junction_temperature", "DEV_GPU_TEMP"),
    *_amd("gpu_edge_temperature", "DEV_GPU_TEMP"),
    *_amd("gpu_memory_temperature", "DEV_MEMORY_TEMP"),
    *_amd("gpu_package_power", "DEV_POWER_USAGE"),
    *_amd("gpu_average_package_power", "DEV_POWER_USAGE"),
    *_amd("gpu_power_usage", "DEV_POWER_USAGE"),
    *_amd("gpu_energy_consumed", "DEV_TOTAL_ENERGY_CONSUMPTION", scale=1e-3),
    *_amd("gpu_clock", "DEV_SM_CLOCK", only=("clock_type", "system")),
    *_amd("gpu_clock", "DEV_MEM_CLOCK", only=("clock_type", "memory")),
    *_amd("gpu_gfx_activity", "DEV_GPU_UTIL"),
    *_amd("gpu_umc_activity", "DEV_MEM_COPY_UTIL"),
    *_amd("gpu_used_vram", "DEV_FB_USED"),
    *_amd("gpu_free_vram", "DEV_FB_FREE"),
    *_amd("gpu_ecc_correct_total", "DEV_ECC_SBE_VOL_TOTAL"),
    *_amd("gpu_ecc_uncorrect_total", "DEV_ECC_DBE_VOL_TOTAL"),
    *_amd("pcie_replay_count", "DEV_PCIE_REPLAY_COUNTER"),
    *_amd("pcie_speed", "DEV_PCIE_LINK_GEN", how="generation"),
    *_amd("pcie_max_speed", "DEV_PCIE_MAX_LINK_GEN", how="generation"),
    *_amd("gpu_xgmi_link_rx", "PROF_NVLINK_RX_BYTES", how="rate", scale=1024.0),
    *_amd("gpu_xgmi_link_tx", "PROF_NVLINK_TX_BYTES", how="rate", scale=1024.0),
    *_amd("gpu_violation_ppt_residency_percentage", "DEV_POWER_VIOLATION", how="share"),
    *(
        translation
        for part in _THERMAL
        for translation in _amd(
            f"gpu_violation_{part}_residency_percentage", "DEV_THERMAL_VIOLATION", how="share"
        )
    ),
    Translation(name="amd_gpu_power", to="DCGM_FI_DEV_POWER_USAGE", scale=1e-6),
    Translation(name="amd_gpu_power_cap", to="DCGM_FI_DEV_POWER_MGMT_LIMIT", scale=1e-6),
    Translation(name="amd_gpu_current_temperature", to="DCGM_FI_DEV_GPU_TEMP", scale=1e-3),
    Translation(name="amd_gpu_SCLK", to="DCGM_FI_DEV_SM_CLOCK", scale=1e-6),
    Translation(name="amd_gpu_MCLK", to="DCGM_FI_DEV_MEM_CLOCK", scale=1e-6),
    Translation(name="amd_gpu_use_percent", to="DCGM_FI_DEV_GPU_UTIL"),
)
"""If several mean the same, the first that a GPU has counts."""
_BY_TARGET: dict[str, list[Translation]] = {}
for _one in TRANSLATIONS:
    _BY_TARGET.setdefault(_one.to, []).append(_one)
SEVERAL = frozenset({"DCGM_FI_DEV_THERMAL_VIOLATION"})
"""Metrics of which a GPU may have several series: one per reason."""


class TranslatedSource:
    """Another source, with the metrics of other makers' GPUs under the names that the detectors read."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._there: frozenset[str] | None = None

    def metrics(self) -> tuple[str, ...]:
        there = self._names()
        return tuple(sorted(there | {one.to for one in TRANSLATIONS if one.name in there}))

    def frame(self, metric: str, window_ns: tuple[int, int]) -> Frame | None:
        found = self._source.frame(metric, window_ns)
        for translation in _BY_TARGET.get(metric, ()):
            if translation.name in self._names():
                frame = self._source.frame(translation.name, window_ns)
                if frame is not None:
                    found = joined(found, _turned(frame, translation), is_again=metric in SEVERAL)
        return found

    def _names(self) -> frozenset[str]:
        """Requested once: this source serves one evaluation."""
        if self._there is None:
            self._there = frozenset(self._source.metrics())
        return self._there


def _turned(frame: Frame, translation: Translation) -> Frame:
    chosen = [
        column
        for column, labels in enumerate(frame.labels)
        if translation.only is None or labels.get(translation.only[0]) == translation.only[1]
    ]
    values = frame.values[:, chosen].astype(np.float64)
    return msgspec.structs.replace(
        frame,
        metric=translation.to,
        kind="counter"
        if translation.how == "share"
        else "gauge"
        if translation.how == "rate"
        else frame.kind,
        subjects=tuple(frame.subjects[column] for column in chosen),
        labels=tuple(frame.labels[column] for column in chosen),
        values=_converted(msgspec.structs.replace(frame, values=values), translation) * translation.scale,
        words=(),
    )


def _converted(frame: Frame, translation: Translation) -> Floats:
    match translation.how:
        case "value":
            return frame.values
        case "rate":
            return per_second(frame).values
        case "generation":
            limits = np.array(GENERATION_GT_S) * GENERATION_SLACK
            return np.where(np.isnan(frame.values), np.nan, np.searchsorted(limits, frame.values))
        case "share":
            lengths_ns = np.diff(frame.times_ns, prepend=frame.times_ns[:1])[:, None].astype(np.float64)
            spent_ns = np.nan_to_num(frame.values) / 100.0 * lengths_ns
            return np.where(np.isnan(frame.values), np.nan, spent_ns.cumsum(axis=0))
