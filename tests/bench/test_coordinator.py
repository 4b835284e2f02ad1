"""The coordinator's benchmark: a real coordinator in its own process, and members that are connections."""

import asyncio

import msgspec
import pytest

from bench.coordinator import measure

pytestmark = pytest.mark.slow


def test_what_is_measured() -> None:
    told = msgspec.to_builtins(asyncio.run(measure(16)))
    assert told["members"] == 16
    assert {"commits_per_s", "regroup_s", "memory_bytes"} <= set(told)
    assert all(value > 0 for value in told.values())
