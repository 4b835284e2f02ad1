"""A simulated cluster, driven by the membership of `run` and judged by the ledger.

These are the public names of the room. Each is imported when it is first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING

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

    def __getattr__(name: str) -> object:
        home = next((home for home, names in _HOMES.items() if name in names), None)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"holdfast.twin.{home}"), name)
