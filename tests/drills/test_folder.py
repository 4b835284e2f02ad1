"""The files of a drill: what is written can be read back by the readers it is meant for."""

from pathlib import Path

import msgspec
import pytest

from holdfast.drills.folder import write
from holdfast.drills.scenarios import Played, Truth, play
from holdfast.record.errors import InputError
from holdfast.record.importers import Options, import_file
from holdfast.topology import file

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def played() -> Played:
    return play("cooling-pump", 1)


def test_what_is_written_can_be_read_back(played: Played, tmp_path: Path) -> None:
    files = write(played, tmp_path / "drill")
    names = ["events.jsonl", "signals.om", "redfish.jsonl", "topology.yaml", "truth.json"]
    assert [path.name for path in files] == names
    events, signals, redfish, topology, truth = files
    page = file.read(topology.read_text("utf-8"))
    assert played.run in page.described(page.survey).topology
    with import_file(events, Options()) as reading:
        assert list(reading) == list(played.events)
    assert msgspec.json.decode(truth.read_bytes(), type=Truth) == played.truth
    readings = [msgspec.json.decode(line) for line in redfish.read_bytes().splitlines()]
    assert len(readings) == 180 * played.layout.count("loop")
    flows = [reading["FlowLitersPerMinute"] for reading in readings if "FlowLitersPerMinute" in reading]
    assert {type(flow) for flow in flows} == {float, str}
    with signals.open("rb") as text:
        text.seek(-6, 2)
        assert text.read() == b"# EOF\n"


def test_a_place_that_cannot_be_written_to_is_refused(played: Played, tmp_path: Path) -> None:
    (tmp_path / "drill").write_text("a file")
    with pytest.raises(InputError, match="cannot be written"):
        write(played, tmp_path / "drill")
