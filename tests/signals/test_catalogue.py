"""The catalogue holds all that the twin shows, and the page shows all of the catalogue."""

import re
from pathlib import Path

import pytest

from holdfast.drills.metrics import CATALOGUE as SHOWN
from holdfast.signals.catalogue import CATALOGUE, describe

PAGE = Path(__file__).parents[2] / "docs" / "signals.md"


@pytest.mark.parametrize("name", SHOWN)
def test_what_the_twin_shows_is_known(name: str) -> None:
    assert SHOWN[name].known is CATALOGUE[name]
    assert SHOWN[name].sensor.trap in (None, CATALOGUE[name].trap)


def test_bounds_are_bounds_and_only_gauges_have_them() -> None:
    for metric in CATALOGUE.values():
        assert (metric.low is None) == (metric.high is None)
        if metric.low is not None and metric.high is not None:
            assert metric.low < metric.high
            assert metric.kind == "gauge"
        assert not metric.sensed or metric.high is not None


def test_names_tell_the_kind() -> None:
    for name, metric in CATALOGUE.items():
        if name.endswith(("_total", "_count", "_sum")):
            assert metric.kind == "counter", name


@pytest.mark.parametrize(
    ("name", "kind", "scope"),
    [
        ("anything_total", "counter", "node"),
        ("anything", "gauge", "node"),
        ("node_infiniband_new_total", "counter", "port"),
        ("DCGM_FI_DEV_NEW", "gauge", "gpu"),
        ("node_pcidevice_new", "gauge", "pci"),
        ("holdfast_member_new", "gauge", "member"),
    ],
)
def test_of_other_names_something_is_known(name: str, kind: str, scope: str) -> None:
    metric = describe(name)
    assert (metric.name, metric.kind, metric.scope) == (name, kind, scope)


def test_the_page_has_all_of_it() -> None:
    rows = re.findall(r"^\| `([^`]+)` \| (.+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    shown = {name: cells for name, cells in rows if name in CATALOGUE}
    assert shown == {name: _cells(name) for name in CATALOGUE}


def _cells(name: str) -> str:
    metric = CATALOGUE[name]
    return " | ".join((metric.kind, metric.unit, metric.scope, metric.trap or "", metric.meaning))
