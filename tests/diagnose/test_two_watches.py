"""Two watches with one record, of which one cannot see that a run is slow."""

from pathlib import Path

import pytest

from holdfast.diagnose import recorded
from holdfast.record.stores import open_store

from .test_phases import LOOK_S, OWN, RUN, SLOWER_S, Server, scraped, watching

pytestmark = pytest.mark.slow


def test_a_watch_that_sees_no_slowness_does_not_end_what_another_one_sees(tmp_path: Path) -> None:
    slow, healthy = (Server(scraped(5, 3, OWN, slower=slower, until_s=5_400)) for slower in (1.64, 1.0))
    with watching(slow, OWN, tmp_path) as seeing, watching(healthy, OWN, tmp_path) as blind:
        first_s, last_s = SLOWER_S + 60, SLOWER_S + 1_500
        for at_s in range(first_s, last_s, LOOK_S):
            seeing.look(at_s)
            blind.look(at_s + 3)
        assert [change.state for change in seeing.heard.changes][:1] == ["open"]
        assert {change.state for change in seeing.heard.changes[1:]} <= {"changed"}
        assert blind.heard.changes == []
        assert (seeing.heard.open, blind.heard.open) == ([RUN], [RUN])
        with open_store(None, tmp_path) as store:
            assert {change.incident.name for change in recorded.changes_of(store)} == {f"{RUN}/s1"}
            assert all(change.state != "resolved" for change in recorded.changes_of(store))
        # Alone, it believes what it sees.
        for at_s in range(last_s, last_s + 700, 6 * LOOK_S):
            blind.look(at_s)
        assert [change.state for change in blind.heard.changes] == ["resolved"]
