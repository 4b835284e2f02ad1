"""A simulated cluster, driven by the membership of `run` and judged by the ledger."""

from typing import TYPE_CHECKING

from holdfast.faces import face

if TYPE_CHECKING:
    from holdfast.twin.cluster import Layout
    from holdfast.twin.policies import Policy, policy
    from holdfast.twin.presets import Preset, preset
    from holdfast.twin.simulation import simulate
    from holdfast.twin.study import Study

__all__ = ["Layout", "Policy", "Preset", "Study", "policy", "preset", "simulate"]

_HOMES = {
    "cluster": {"Layout"},
    "policies": {"Policy", "policy"},
    "presets": {"Preset", "preset"},
    "simulation": {"simulate"},
    "study": {"Study"},
}

if not TYPE_CHECKING:
    __getattr__ = face(__name__, _HOMES)
