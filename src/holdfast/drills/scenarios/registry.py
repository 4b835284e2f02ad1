"""Every scenario by its name."""

import tomllib
from difflib import get_close_matches
from importlib.resources import files

import msgspec

from holdfast.drills.scenarios.decoys import DECOYS
from holdfast.drills.scenarios.facilities import FACILITIES
from holdfast.drills.scenarios.hosts import HOSTS
from holdfast.drills.scenarios.network import NETWORK
from holdfast.drills.scenarios.software import SOFTWARE
from holdfast.drills.scenarios.stage import Scenario
from holdfast.drills.scenarios.storages import STORAGES
from holdfast.record.errors import InputError

_TOLD = tomllib.loads((files(__package__) / "scenarios.toml").read_text(encoding="utf-8"))

SCENARIOS = {
    name: msgspec.convert({**_TOLD[name], "name": name, "draw": draw}, Scenario)
    for name, draw in (FACILITIES | NETWORK | HOSTS | STORAGES | SOFTWARE | DECOYS).items()
}


def find(name: str) -> Scenario:
    """The scenario of this name; `InputError` with the nearest one where there is none."""
    if name in SCENARIOS:
        return SCENARIOS[name]
    near = get_close_matches(name, SCENARIOS, n=1)
    hint = f"Did you mean {near[0]}?" if near else "There are: " + ", ".join(SCENARIOS) + "."
    raise InputError(f"There is no scenario {name!r}.", hint=hint)
