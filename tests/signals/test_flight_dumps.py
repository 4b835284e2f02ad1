"""Dumps of the flight recorder: read as torch means them, refused in a sentence where they are none."""

import json
import os
import pickle
from pathlib import Path

import pytest
from flight_entries import dump, entry, write

from holdfast.record.errors import InputError
from holdfast.signals.flight_dumps import (
    APART_NS_MAX,
    FILE_BYTES_MAX,
    KEPT_MAX,
    CodeLine,
    parse_dump,
    read_dumps,
)

WORLD = {"0": [0, 1, 2]}


def parsed(said: object) -> object:
    return parse_dump(0, pickle.dumps(said, 2))


def test_a_call_has_what_torch_says_of_it() -> None:
    found = parse_dump(7, pickle.dumps(dump([entry(seq=3)], WORLD), 2))
    (call,) = found.calls
    assert (found.rank, found.members, found.reached) == (7, {"0": (0, 1, 2)}, {"0": 3})
    assert (call.backend, call.name, call.seq, call.group, call.purpose) == (
        "nccl",
        "all_reduce",
        3,
        "0",
        "default_pg",
    )
    assert (call.inputs, call.outputs, call.types) == ((16,), (16,), ("Float",))
    assert call.lines == (CodeLine("train_step", "train.py", 43),), "without torch's own"


@pytest.mark.parametrize(
    ("name", "state", "retired", "is_finished", "timed_out"),
    [
        ("nccl:all_reduce", "completed", True, True, False),
        ("nccl:all_reduce", "started", False, False, False),
        ("nccl:all_reduce", "started", True, False, True),
        ("gloo:all_reduce", "scheduled", True, True, False),
        ("gloo:all_reduce", "scheduled", False, False, False),
    ],
)
def test_gloo_retires_what_is_finished_and_nccl_what_it_gave_up(
    name: str, state: str, *, retired: bool, is_finished: bool, timed_out: bool
) -> None:
    (call,) = parse_dump(0, pickle.dumps(dump([entry(name, 1, state, retired=retired)], WORLD), 2)).calls
    assert (call.state == "finished", call.timed_out) == (is_finished, timed_out)


def test_a_later_call_of_nccl_that_is_finished_shows_that_the_earlier_are() -> None:
    calls = [entry(seq=1), entry(seq=2, state="completed"), entry(seq=3)]
    found = parse_dump(0, pickle.dumps(dump(calls, WORLD), 2))
    assert [call.state for call in found.calls] == ["finished", "finished", "started"]


@pytest.mark.parametrize(
    ("closing", "retired", "told"),
    [
        ("completed", True, ("finished", False)),
        ("started", False, ("started", False)),
        ("scheduled", False, ("scheduled", False)),
        ("started", True, ("started", True)),
    ],
)
def test_calls_of_a_batch_end_with_the_one_that_closes_it(
    closing: str, *, retired: bool, told: tuple[str, bool]
) -> None:
    """torch leaves each of them as scheduled: pytorch issue 137969."""
    calls = [
        entry("nccl:send 0->1", 4, "scheduled"),
        entry("nccl:recv 0<-1", 4, "scheduled"),
        entry("nccl:coalesced", 4, closing, retired=retired, is_p2p=True, p2p_seq_id=4),
    ]
    found = parse_dump(0, pickle.dumps(dump(calls, WORLD), 2)).calls
    assert [(call.state, call.timed_out) for call in found] == [told] * 3


def test_a_batch_that_was_not_closed_is_unfinished_whatever_others_did() -> None:
    """Another number, another group and a collective of the same number are other batches."""
    pair = ("1", "pp")
    calls = [
        entry("nccl:send 0->1", 3, "scheduled", group=pair),
        entry("nccl:send 0->1", 2, "scheduled"),
        entry("nccl:coalesced", 3, "completed", is_p2p=True, p2p_seq_id=3),
        entry("nccl:all_gather_into_tensor_coalesced", 2, "completed"),
        entry("nccl:_all_gather_base", 2, "scheduled"),
        entry("nccl:recv 0<-1", 4, "scheduled"),
    ]
    found = parse_dump(0, pickle.dumps(dump(calls, WORLD), 2)).calls
    assert [call.state == "finished" for call in found] == [False, False, True, True, True, False]


def test_json_says_the_same_without_stacks() -> None:
    said = dump([{**entry(seq=2), "frames": []}], WORLD)
    said["pg_status"] = {"0": {"last_enqueued_collective": 2}}
    as_text = json.loads(json.dumps(said))
    as_text["pg_status"]["0"]["last_enqueued_collective"] = "2"
    assert parse_dump(0, json.dumps(as_text).encode()) == parsed(said)


def test_a_dump_of_unfinished_calls_alone_still_says_how_far_the_rank_came() -> None:
    said = dump([entry(seq=9, group=("1", "tp"))], WORLD, pg_status={"0": {"last_enqueued_collective": 12}})
    assert parse_dump(0, pickle.dumps(said, 2)).reached == {"1": 12}


def test_of_thousands_of_calls_those_are_kept_that_tell_where_the_rank_stands() -> None:
    done = [entry(seq=number, state="completed") for number in range(1, 2001)]
    waiting = [entry(seq=number, state="scheduled") for number in range(2001, 2501)]
    calls = parse_dump(0, pickle.dumps(dump([*done, *waiting], WORLD), 2)).calls
    assert [call.seq for call in calls] == [
        *range(2001 - KEPT_MAX, 2001),
        *range(2001, 2001 + KEPT_MAX),
        2500,
    ]


def test_values_that_refer_to_each_other_are_not_walked_through() -> None:
    """A list of lists of the same list: a few bytes that would take for ever to walk through."""
    sizes: list[object] = [8]
    for _ in range(40):
        sizes = [sizes] * 1_000
    said = dump([entry(input_sizes=sizes)], WORLD)
    with pytest.raises(ValueError, match="where a number should be"):
        parsed(said)
    looped: list[object] = []
    looped.append(looped)
    for key in ("process_group", "frames", "pg_id", "input_dtypes", "profiling_name"):
        with pytest.raises(ValueError, match="it "):
            parsed(dump([{**entry(), key: looped}], WORLD))


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "damaged"),
        (b"\x00\x01", "more than plain values"),
        (b'{"version": "2.10", "entries": [', "JSON is damaged"),
        (b'{"entries": []}', "no version"),
        (b'{"version": "3.0"}', "version is '3.0'"),
        (b'{"version": "2.1", "entries": 5}', "not have the structure of a dump"),
        (b'{"version": "2.1", "entries": [{"process_group": ["0", 1]}]}', "where a name should be"),
        (pickle.dumps({"version": "2.10", "entries": [os.getcwd]}), "more than plain values"),
    ],
)
def test_what_is_no_dump_is_refused_in_a_sentence(content: bytes, complaint: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=complaint) as raised:
        read_dumps(write(tmp_path / "d", {0: content}))
    assert "nccl_trace_rank_0 is not a dump of torch's flight recorder" in raised.value.sentence


def test_one_file_that_cannot_be_read_does_not_hide_the_others(tmp_path: Path) -> None:
    good = dump([entry()], WORLD)
    found = read_dumps(write(tmp_path / "d", {0: good, 1: b"", 2: good}))
    assert [one.rank for one in found.dumps] == [0, 2]
    assert found.unreadable == {1: "it is damaged at byte 0"}


def test_a_dump_that_an_earlier_hang_has_left_is_not_used(tmp_path: Path) -> None:
    """Ranks 0 and 1 stand since noon. 2 is of a hang an hour before; 3 is late, and 4 says no times."""
    noon_ns = 1_794_916_800 * 10**9

    def of(*times_ns: int) -> object:
        calls = [entry(seq=number, time_created_ns=time_ns) for number, time_ns in enumerate(times_ns, 1)]
        return dump(calls, WORLD)

    early_ns = noon_ns - APART_NS_MAX
    folder = write(
        tmp_path / "d",
        {
            0: of(noon_ns, noon_ns + 7_200 * 10**9),
            1: of(noon_ns + 1),
            2: of(noon_ns - 7_200 * 10**9, early_ns - 1),
            3: of(early_ns),
            4: of(0),
        },
    )
    found = read_dumps(folder)
    assert [one.rank for one in found.dumps] == [0, 1, 3, 4]
    assert found.unreadable == {2: "it is from another time"}


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    folder = write(tmp_path / "d", {0: dump([entry()], WORLD), 1: b""})
    os.truncate(folder / "nccl_trace_rank_1", FILE_BYTES_MAX + 1)
    assert "has more than" in read_dumps(folder).unreadable[1]


def test_dumps_are_found_among_other_files_and_by_a_prefix(tmp_path: Path) -> None:
    folder = write(tmp_path / "d", {0: dump([entry()], WORLD), 1: dump([entry()], WORLD)})
    write(folder, {5: b"of something else"}, prefix="core.")
    write(folder, {4: dump([entry()], WORLD)}, prefix="mine-")
    os.mkfifo(folder / "nccl_trace_rank_9")
    assert [one.rank for one in read_dumps(folder).dumps] == [0, 1]
    assert [one.rank for one in read_dumps(folder / "mine-").dumps] == [4]


def test_which_of_several_series_is_asked_for(tmp_path: Path) -> None:
    folder = write(tmp_path / "d", {0: dump([entry()], WORLD)}, prefix="a_")
    write(folder, {0: dump([entry()], WORLD)}, prefix="b_")
    with pytest.raises(InputError, match="several series") as raised:
        read_dumps(folder)
    assert raised.value.hint == f"Name one: {folder}/a_ or {folder}/b_."


@pytest.mark.parametrize("name", ["", "nowhere/", "nccl_trace_rank_"])
def test_a_folder_without_dumps_is_named(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError):
        read_dumps(tmp_path / name / "x" if name.endswith("/") else tmp_path / name)


def test_one_of_the_files_stands_for_its_whole_series(tmp_path: Path) -> None:
    folder = write(tmp_path / "d", {rank: dump([entry()], WORLD) for rank in (0, 1, 2, 10)})
    write(folder, {1: dump([entry()], WORLD), 7: dump([entry()], WORLD)}, prefix="mine-")
    (folder / "nccl_trace_rank_5.json").write_text("{}", encoding="utf-8")
    assert [one.rank for one in read_dumps(folder / "nccl_trace_rank_1").dumps] == [0, 1, 2, 10]
    assert [one.rank for one in read_dumps(folder / "mine-7").dumps] == [1, 7]


@pytest.mark.parametrize("refused", ["d", "nccl_trace_rank_0"])
def test_a_folder_that_may_not_be_looked_into_is_a_mistake_in_a_sentence(
    refused: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(tmp_path / "d", {0: dump([entry()], WORLD)})
    look = Path.stat

    def stat(path: Path, **how: bool) -> os.stat_result:
        if path.name == refused:
            raise PermissionError(13, "Permission denied")
        return look(path, **how)

    monkeypatch.setattr(Path, "stat", stat)
    with pytest.raises(InputError, match="Cannot read "):
        read_dumps(folder)


def test_a_name_that_is_too_long_is_a_mistake_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Cannot read "):
        read_dumps(tmp_path / ("x" * 300))


def test_what_all_ranks_list_is_kept_once(tmp_path: Path) -> None:
    """Each dump has the whole world: parsed for each, the work and the memory would be quadratic."""
    world = {"0": range(500), "1": range(0, 500, 2)}
    found = read_dumps(write(tmp_path / "d", {rank: dump([entry()], world) for rank in range(20)}))
    assert found.dumps[0].members == {"0": tuple(range(500)), "1": tuple(range(0, 500, 2))}
    assert len({id(dump.members["0"]) for dump in found.dumps}) == 1
    assert len({id(dump.members["1"]) for dump in found.dumps}) == 1


@pytest.mark.parametrize("ranks", ["", "[]", "[0, x]", 5, None])
def test_a_list_of_ranks_that_is_none_names_nobody(ranks: object) -> None:
    said = dump([entry()], {})
    said["pg_config"] = {"0": {"ranks": ranks}, "1": {"ranks": "[3,4]"}}
    assert parse_dump(0, pickle.dumps(said, 2)).members == {"1": (3, 4)}
