"""Attacks on readers of files, logs and messages: an input may neither exhaust a machine nor end in a
traceback.

Inputs that could take the machine down, if they were not refused, are read in a process with little memory
and time.
"""

import gzip
import json
import resource
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import msgspec
import pytest

from holdfast.detect.xids import parse_overrides
from holdfast.diagnose.lifecycle import restored
from holdfast.economics.finance import ownership
from holdfast.economics.pricing import prices
from holdfast.economics.sizing import size_file
from holdfast.record.errors import HoldfastError, InputError, complaint
from holdfast.record.events import IncidentDiagnosed, RunStarted, encode
from holdfast.record.importers import Options, import_file
from holdfast.record.journal import Damage, line_of, read
from holdfast.record.spool import LINE_BYTES_MAX
from holdfast.run import wire
from holdfast.run.chaos import read_plan
from holdfast.stragglers.kineto import read_profiles
from holdfast.stragglers.meta import read_meta
from holdfast.topology import document
from holdfast.topology.discovery import kubernetes, slurm
from holdfast.topology.hostlist import NAMES_MAX, count, expand
from holdfast.twin.presets import hazards_from

pytestmark = pytest.mark.slow

MEMORY_BYTES_MAX = 1 << 30
SECONDS_MAX = 60
DEEP = 100_000


@pytest.fixture
def confined(tmp_path: Path) -> Callable[..., str]:
    """Runs some lines of Python with little memory and time, and returns what they print."""

    def run(lines: str, *arguments: object, memory_bytes_max: int = MEMORY_BYTES_MAX) -> str:
        def limit() -> None:
            resource.setrlimit(resource.RLIMIT_AS, (memory_bytes_max, memory_bytes_max))
            resource.setrlimit(resource.RLIMIT_CPU, (SECONDS_MAX, SECONDS_MAX))

        done = subprocess.run(
            [sys.executable, "-c", dedent(lines), *map(str, arguments)],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            preexec_fn=limit,
            env={"OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": ":".join(sys.path)},
            check=False,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout

    return run


# ---- depth -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("opening", ["[", "{a: ", "- ", "? "])
def test_nested_yaml_does_not_end_the_process(confined: Callable[..., str], opening: str) -> None:
    said = confined(
        """
        import sys
        from holdfast.record.errors import InputError
        from holdfast.topology import document

        try:
            document.read(sys.argv[1] * int(sys.argv[2]))
        except InputError as error:
            print(error.sentence)
        """,
        opening,
        200_000 // len(opening),
    )
    assert "line 1: " in said


def test_nested_yaml_of_a_jobs_meta_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "meta.yaml"
    path.write_text("[" * DEEP)
    with pytest.raises(InputError, match="does not describe a job"):
        read_meta(path)


@pytest.mark.soak  # a million values take seconds
def test_yaml_that_repeats_itself_is_refused() -> None:
    bomb = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12))
    with pytest.raises(InputError, match="as large or as deep"):
        document.read(bomb)


def test_nested_json_is_refused_by_every_reader(tmp_path: Path) -> None:
    deep = b'{"a":' * DEEP
    listed = b'{"items":[{"extra":' + b"[" * DEEP
    plan = tmp_path / "plan.toml"
    plan.write_text("fault = " + "[" * DEEP)
    trace = tmp_path / "trace.json"
    trace.write_bytes(b'{"traceEvents":[{"args":' + deep)
    for reader in (
        lambda: kubernetes.survey(listed),
        lambda: slurm.survey(nodes="", switches="", jobs=b'{"jobs":[{"extra":' + b"[" * DEEP),
        lambda: hazards_from(deep),
        lambda: read_plan(plan),
        lambda: read_profiles(trace),
    ):
        with pytest.raises(InputError):
            reader()
    diagnosed = IncidentDiagnosed(
        id="i", occurred_ns=1, subject="s", incident="r/s1", state="open", diagnosis=deep.decode()
    )
    assert restored([diagnosed]) == []


def test_a_nested_message_is_a_malformed_frame() -> None:
    with pytest.raises(wire.MalformedFrame):
        wire.unframe(b"\x91" * DEEP)
    with pytest.raises(wire.MalformedFrame):
        wire.unframe(b"\x81\xa1a" * DEEP)
    with pytest.raises(wire.MalformedFrame):  # inside a field that the message does not know and skips
        wire.unframe(b"\x82\xa4type\xabAgentJoined\xa5extra" + b"\x91" * DEEP)


# ---- size ------------------------------------------------------------------------------------------------


def test_many_host_lists_are_counted_before_they_are_expanded(confined: Callable[..., str]) -> None:
    said = confined(
        """
        from holdfast.record.errors import InputError
        from holdfast.topology.file import read

        lists = "".join(f"  a{n}[0-1999999]: {{}}\\n" for n in range(40))
        racks = "".join(f"  r{n}: n[0-1999999]\\n" for n in range(40))
        for text in ("nodes:\\n" + lists, "nodes:\\n  n1: {}\\nracks:\\n" + racks,
                     "nodes:\\n  n[0-1999]: {gpus: 1024}\\n  m[0-1999]: {gpus: 1024}\\n"):
            try:
                read(text)
            except InputError as error:
                print(error.sentence)
        """
    )
    assert said.count("more than 2,000,000") == 3


@pytest.mark.parametrize("text", ["n[0-99999999]", "n[0-999][0-999][0-999]", "a,b[0-1999999]", "n[0-9]" * 18])
def test_a_host_list_without_measure_is_refused_at_once(text: str) -> None:
    assert count(text) > NAMES_MAX
    with pytest.raises(InputError, match="stands for more than"):
        expand(text)


def test_slurm_cannot_name_more_nodes_than_there_are() -> None:
    switches = "".join(f"SwitchName=s{n} Nodes=n[0-1999999]\n" for n in range(40))
    with pytest.raises(InputError, match="Slurm's topology names more than"):
        slurm.survey(nodes="", switches=switches, jobs=b"{}")
    jobs = [{"job_id": n, "nodes": "n[0-1999999]", "job_state": "RUNNING"} for n in range(40)]
    with pytest.raises(InputError, match="Slurm's queue names more than"):
        slurm.survey(nodes="", switches="", jobs=json.dumps({"jobs": jobs}).encode())


def test_a_trace_that_unpacks_without_end_is_refused(confined: Callable[..., str], tmp_path: Path) -> None:
    bomb = zlib.compressobj(9, zlib.DEFLATED, 31)
    block = b" " * (1 << 20)
    (tmp_path / "bomb.json.gz").write_bytes(
        b"".join(bomb.compress(block) for _ in range(256)) + bomb.flush()  # 256 MiB in 256 KiB
    )
    said = confined(
        """
        from pathlib import Path
        from holdfast.record.errors import InputError
        from holdfast.stragglers.kineto import read_profiles

        try:
            read_profiles(Path("bomb.json.gz"))
        except InputError as error:
            print(error.sentence)
        """,
        memory_bytes_max=3 << 30,
    )
    assert "it unpacks to more than" in said


def test_a_journals_endless_line_is_passed_over(confined: Callable[..., str], tmp_path: Path) -> None:
    good = line_of(encode(RunStarted(id="e1", occurred_ns=1, run="r", gpus=1)))
    path = tmp_path / "a-000000.journal"
    with path.open("wb") as file:
        file.write(good)
        file.seek(400 << 20, 1)  # zeros that take no space
        file.write(b"\n" + good)
    said = confined(
        """
        from pathlib import Path
        from holdfast.record.journal import read

        for item in read(Path("a-000000.journal")):
            print(type(item).__name__, getattr(item, "reason", ""), getattr(item, "line", ""))
        """,
        memory_bytes_max=1 << 29,
    )
    assert said.splitlines() == [
        "RunStarted  ",
        f"Damage the line is longer than {LINE_BYTES_MAX:,} bytes 2",
        "RunStarted  ",
    ]


def test_a_journals_endless_line_without_an_end_is_torn(tmp_path: Path) -> None:
    path = tmp_path / "a-000000.journal"
    path.write_bytes(b"x" * (3 * LINE_BYTES_MAX))
    (damage,) = read(path)
    assert isinstance(damage, Damage)
    assert damage.torn


def test_slurms_accounting_is_not_held_in_memory(confined: Callable[..., str], tmp_path: Path) -> None:
    head = "JobID|JobName|Account|State|Submit|Start|End|NNodes|NodeList|AllocTRES"
    times = "2026-01-01T00:00:00|2026-01-01T00:01:00|2026-01-01T01:00:00"
    with (tmp_path / "sacct.txt").open("w") as file:
        file.write(head + "\n")
        file.writelines(
            f"{n}|{'name' * 20}{n}|team{n}|COMPLETED|{times}|2|n{n}|gres/gpu=16\n" for n in range(20_000)
        )
    said = confined(
        """
        import resource
        from pathlib import Path
        from holdfast.record.importers import Options, import_file

        def peak_bytes():
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

        Path("one.txt").write_text("\\n".join(Path("sacct.txt").read_text().splitlines()[:50]))
        for name in ("one.txt", "sacct.txt"):
            with import_file(Path(name), Options()) as reading:
                print(sum(1 for _ in reading))
            print(peak_bytes())
        """
    )
    _, before, events, after = map(int, said.split())
    assert events == 20_000 * 3
    assert after - before < 4 * (tmp_path / "sacct.txt").stat().st_size


@pytest.mark.parametrize("slots", [2**33, 2**63, 0, -1, 1025])
def test_a_node_with_impossible_slots_is_a_malformed_message(slots: int) -> None:
    joined = {"type": "AgentJoined", "node": "n", "slots": slots, "address": "a", "port": 1}
    with pytest.raises(wire.MalformedFrame):
        wire.unframe(msgspec.msgpack.encode(joined))


# ---- text and numbers ------------------------------------------------------------------------------------


def profile(directory: Path, content: bytes) -> Path:
    path = directory / "rank0.json"
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    "content",
    [
        b'{"traceEvents":[{"name":"\xff\xfe","ph":"X"}]}',
        b'{"traceEvents":[],"distributedInfo":{"rank":%d}}' % 10**30,
        b'{"traceEvents":[],"distributedInfo":{"rank":-5}}',
        b'{"traceEvents":[{"name":"ProfilerStep#%b","ph":"X","cat":"x","ts":1,"dur":2}]}' % (b"9" * 5000),
        b'{"traceEvents":[{"name":"ProfilerStep#%d","ph":"X","cat":"x","ts":1,"dur":2}]}' % 10**20,
        b'{"traceEvents":[{"name":"a","ph":"X","ts":1e999,"dur":2}]}',
    ],
    ids=["utf-8", "rank", "negative", "step of 5000 digits", "step of 20 digits", "infinite"],
)
def test_a_damaged_trace_is_a_sentence(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(InputError):
        read_profiles(profile(tmp_path, content))


def test_a_truncated_or_false_gzip_is_a_sentence(tmp_path: Path) -> None:
    whole = gzip.compress(b'{"traceEvents":[]}' * 100)
    for content in (whole[:-9], b"no gzip", whole[:20] + b"\xff" * 20, b""):
        path = tmp_path / "rank0.json.gz"
        path.write_bytes(content)
        with pytest.raises(InputError):
            read_profiles(path)


@pytest.mark.parametrize("name", ["\x1b]52;c;cm0gLXJm\x07", "\x1b[2J", "a\nholdfast: all is well", "\u202e"])
def test_no_refusal_obeys_a_name(name: str) -> None:
    told = complaint(f"{name} is not there.", f"Look for {name}.")
    assert told.count("\n") == 1
    assert HoldfastError(f"{name}.", hint=name).told.count("\n") == 1
    assert all(letter.isprintable() or letter == "\n" for letter in told)


@pytest.mark.parametrize(
    "text", ["a = " + "9" * 5000, '["\udc80"]', "[" * DEEP], ids=["number", "no text", "deep"]
)
@pytest.mark.parametrize(
    "read",
    [size_file.read, parse_overrides, ownership.read, prices.read],
    ids=["size", "xid", "terms", "prices"],
)
def test_toml_that_no_type_holds_is_a_sentence(read: Callable[[str], object], text: str) -> None:
    with pytest.raises(InputError):
        read(text)


def test_a_log_of_steps_without_measure_is_read_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    path.write_text(json.dumps({"time": 1, "kind": "step.committed", "run": "r", "step": 10**30}) + "\n")
    with import_file(path, Options()) as reading:
        assert list(reading) == []
