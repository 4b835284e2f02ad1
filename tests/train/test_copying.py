"""Checkpoints copied between places: directories and a real S3 server, with kills, faults and two writers."""

import os
import random
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from object_storage import BUCKET, Fate, ObjectServer, faulty_proxy, object_server
from quantity import sampled
from waiting import WAIT_S

from holdfast.record.errors import InputError
from holdfast.train.checkpoint import DirectoryCheckpoints
from holdfast.train.chunks import Unsound
from holdfast.train.copying import collect, copy_step, fault_at, retain, steps_in
from holdfast.train.place import DirectoryStorage, Storage, StorageTrouble, StoredObject
from holdfast.train.places import opened_place

pytestmark = pytest.mark.slow

MIB = 1 << 20
WHOLE = 3 * MIB + 8
"""The size of a state; its last few bytes are in the manifest itself."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectServer]:
    with object_server(tmp_path_factory.mktemp("storage")) as found:
        yield found


@pytest.fixture
def environment(server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> ObjectServer:
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    return server


@pytest.fixture(params=["directory", "s3"])
def place(request: pytest.FixtureRequest, environment: ObjectServer, tmp_path: Path) -> Storage:
    return opened_place(str(tmp_path / "there") if request.param == "directory" else url(tmp_path))


def url(tmp_path: Path, inner: str = "run") -> str:
    """A separate prefix for each test."""
    return f"s3://{BUCKET}/{tmp_path.name}/{inner}"


def state_of(step: int) -> dict[str, Any]:
    frozen = torch.arange(2 * MIB // 4, dtype=torch.int32)
    moving = torch.full((MIB // 4,), step, dtype=torch.int32)
    return {"step": step, "frozen": frozen, "moving": moving, "small": torch.tensor(step)}


def kept_in(directory: Path, steps: Sequence[int], keep: int = 2) -> DirectoryStorage:
    checkpoints = DirectoryCheckpoints(directory, told=lambda *_, **__: None, keep=keep)
    for step in steps:
        checkpoints.save(step, state_of(step))
    return DirectoryStorage(directory)


def steps_at(place: Storage) -> list[int]:
    return [kept.step for kept in steps_in(place.listed())]


def faults_at(place: Storage) -> dict[int, str]:
    """The fault of every step in the place, after every byte was read."""
    listing = place.listed()
    return {kept.step: fault_at(place, kept, listing, is_thorough=True) for kept in steps_in(listing)}


def copy_newest(source: Storage, target: Storage) -> int:
    return copy_step(source, steps_in(source.listed())[-1], target).written_bytes


def test_a_checkpoint_goes_there_and_back_and_is_the_same(place: Storage, tmp_path: Path) -> None:
    source = kept_in(tmp_path / "here", [1, 2])
    assert copy_newest(source, place) == WHOLE
    assert faults_at(place) == {2: ""}
    assert copy_newest(source, place) == 0  # it is there already
    back = DirectoryStorage(tmp_path / "back")
    copy_newest(place, back)
    loaded = DirectoryCheckpoints(tmp_path / "back", told=lambda *_, **__: None).newest()
    assert loaded is not None
    assert loaded.step == 2
    expected: Any = state_of(2)
    state: Any = loaded.state
    assert all(torch.equal(state[name], expected[name]) for name in ("frozen", "moving", "small"))
    assert not place.listed("writing")


def test_what_is_there_is_not_written_again_and_the_two_newest_share_no_pack(
    place: Storage, tmp_path: Path
) -> None:
    source = kept_in(tmp_path / "here", [1], keep=9)
    written = []
    for step in (1, 2, 3, 4):
        kept_in(tmp_path / "here", [step], keep=9)
        written.append(copy_newest(source, place))
        retain(place, 2)
    assert written == [WHOLE, WHOLE, MIB + 8, MIB + 8]  # frozen tensors twice, and never again
    assert faults_at(place) == {3: "", 4: ""}


def test_retention_leaves_the_newest_and_removes_what_nothing_needs(place: Storage, tmp_path: Path) -> None:
    source = kept_in(tmp_path / "here", [1, 2, 3], keep=9)
    for kept in steps_in(source.listed()):
        copy_step(source, kept, place, reuses=False)
    place.write("chunks/0123456789abcdef-000000.pack", b"left by a writer that was killed")
    removed, freed = retain(place, 2)
    assert removed == [1]
    assert freed == 3 * MIB + 32
    assert faults_at(place) == {2: "", 3: ""}
    assert len([key for key in place.listed() if key.endswith(".pack")]) == 2


def test_packs_of_a_writer_stay_until_its_note_is_old(environment: ObjectServer, tmp_path: Path) -> None:
    place = opened_place(url(tmp_path))
    copy_newest(kept_in(tmp_path / "here", [1]), place)
    own, named = "chunks/0123456789abcdef-000000.pack", "chunks/fedcba9876543210-000000.pack"
    note = "writing/0123456789abcdef"
    for key in (own, named):
        place.write(key, b"x")
    place.write(note, b'{"packs":["%s"]}' % named.encode())
    assert collect(place) == 0
    there = environment.root / tmp_path.name / "run" / note
    os.utime(there, (1e9, 1e9))  # its writer died long ago
    assert collect(place) == 2
    assert note not in place.listed()
    place.write(note, b"torn")  # an unreadable note may need any pack
    with pytest.raises(StorageTrouble, match="cannot be read"):
        collect(place)
    assert faults_at(place) == {1: ""}


def test_parts_of_impossible_ranks_are_ignored() -> None:
    names = ("shard-5-of-2/step-000000000001.checkpoint", "shard-0-of-1/step-000000000002.checkpoint")
    assert steps_in({name: StoredObject(1, 0.0, "") for name in names}) == []


def test_a_flipped_byte_is_found_and_never_copied(
    environment: ObjectServer, place: Storage, tmp_path: Path
) -> None:
    copy_newest(kept_in(tmp_path / "here", [1]), place)
    root = environment.root / tmp_path.name / "run"
    (pack,) = ((root if root.exists() else tmp_path / "there") / "chunks").glob("*.pack")
    with pack.open("r+b") as file:
        file.seek(MIB + 7)
        byte = file.read(1)
        file.seek(MIB + 7)
        file.write(bytes([byte[0] ^ 4]))
    assert "is damaged at byte 1048576" in faults_at(place)[1]
    with pytest.raises(Unsound, match="is damaged"):
        copy_newest(place, DirectoryStorage(tmp_path / "back"))
    assert not steps_at(DirectoryStorage(tmp_path / "back"))


def test_what_cannot_be_used_is_said_in_a_few_words(
    environment: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for wrong in ("s3://", "s3:///prefix", "s3://b/x?y=1", "s3://b/../c", "gs://bucket/x"):
        with pytest.raises(InputError):
            opened_place(wrong)
    for wrong in ("s3://key:secret@bucket/x", "gs://key:secret@bucket"):
        with pytest.raises(InputError, match="must not be named with credentials") as told:
            opened_place(wrong)
        assert "key:secret" not in f"{told.value.sentence} {told.value.hint}"
    with pytest.raises(StorageTrouble, match="there is no such bucket") as missing:
        opened_place("s3://nowhere/x").listed()
    assert missing.value.is_mistake
    with pytest.raises(FileNotFoundError):
        opened_place(url(tmp_path)).read("step-000000000001.checkpoint")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    with pytest.raises(StorageTrouble, match="access denied") as denied:
        opened_place(url(tmp_path)).listed()
    assert not denied.value.is_mistake
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(StorageTrouble, match="it cannot be reached") as away:
        opened_place(url(tmp_path), request_s=1).listed()
    assert not away.value.is_mistake


# ---- faults ----------------------------------------------------------------------------------------------

FATES: tuple[Fate, ...] = ("refuse", "fail", "slow", "drop", "forget", "halve")


@pytest.mark.parametrize("seed", sampled(range(40), [0]))
def test_slow_failing_and_cut_requests_tear_nothing(
    environment: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    draws = random.Random(seed)

    def decide(number: int, what: str) -> Fate:
        return draws.choice(FATES) if draws.random() < 0.25 else "pass"

    source = kept_in(tmp_path / "here", [1], keep=9)
    direct = opened_place(url(tmp_path))
    with faulty_proxy(environment, decide) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")
        faulty = opened_place(url(tmp_path))
        for step in (1, 2, 3):
            kept_in(tmp_path / "here", [step], keep=9)
            for _ in range(50):
                try:
                    copy_newest(source, faulty)
                    retain(faulty, 2)
                    break
                except OSError:
                    assert not [fault for fault in faults_at(direct).values() if fault]
            assert steps_at(direct)[-1] == step
            assert not [fault for fault in faults_at(direct).values() if fault]


COPIER = """
    import sys
    from pathlib import Path
    from holdfast.train.copying import copy_step, retain, steps_in
    from holdfast.train.place import DirectoryStorage
    from holdfast.train.places import opened_place

    assert "torch" not in sys.modules
    source, place = DirectoryStorage(Path(sys.argv[1])), opened_place(sys.argv[2])
    keep, rounds = map(int, sys.argv[3:])
    for number in range(rounds):
        kept = steps_in(source.listed())
        copy_step(source, kept[number % len(kept)] if rounds > 1 else kept[-1], place)
        retain(place, keep)
"""


def copier(
    source: Path, target: str, port: int, server: ObjectServer, *words: str
) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(COPIER), str(source), target, *words],
        env={**os.environ, **server.environment(port)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("seed", sampled(range(8), [0]))
def test_a_killed_copy_loses_and_tears_nothing(environment: ObjectServer, tmp_path: Path, seed: int) -> None:
    """Killed at every request in turn, before or after the server has done it; then the copy is repeated."""
    draws = random.Random(seed)
    direct = opened_place(url(tmp_path))
    source = kept_in(tmp_path / "here", [1], keep=9)
    copy_newest(source, direct)
    step = 1
    with faulty_proxy(environment) as proxy:
        for number in range(3 if seed == 0 else 30):
            if steps_at(direct)[-1] == step:
                step += 1
                kept_in(tmp_path / "here", [step], keep=9)
            at = draws.randrange(24)
            begun = len(proxy.asked)
            process = copier(tmp_path / "here", url(tmp_path), proxy.port, environment, "2", "1")
            is_before = draws.random() < 0.5

            def decide(
                asked: int,
                what: str,
                at: int = begun + at,
                is_before: bool = is_before,
                pid: int = process.pid,
            ) -> Fate:
                if asked == at and is_before:
                    os.kill(pid, signal.SIGKILL)
                    return "drop"
                return "pass"

            def after(asked: int, what: str, at: int = begun + at, pid: int = process.pid) -> None:
                if asked == at:
                    os.kill(pid, signal.SIGKILL)

            proxy.decide, proxy.after = decide, after
            _, errors = process.communicate(timeout=WAIT_S)
            assert process.returncode in (0, -signal.SIGKILL), errors
            found = faults_at(direct)
            assert not [fault for fault in found.values() if fault], (seed, number, at, found)
            assert max(found) >= step - 1
        proxy.decide, proxy.after = (lambda *_: "pass"), (lambda *_: None)
    copy_newest(source, direct)
    retain(direct, 2)
    assert max(faults_at(direct)) == step


@pytest.mark.parametrize("rounds", sampled([6, 60], [6]))
def test_two_writers_lose_nothing_and_tear_nothing(
    environment: ObjectServer, tmp_path: Path, rounds: int
) -> None:
    """Each copies its steps and removes all but the newest, at the same time as the other."""
    for number, name in enumerate(("one", "other")):
        kept_in(tmp_path / name, range(1 + number, 9, 2), keep=9)
    target = url(tmp_path)
    writers = [
        copier(tmp_path / name, target, environment.port, environment, "1", str(rounds))
        for name in ("one", "other")
    ]
    ends = [writer.communicate(timeout=WAIT_S) for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0], ends
    place = opened_place(target)
    found = faults_at(place)
    assert found
    assert not [fault for fault in found.values() if fault]
    retain(place, 1)
    assert len(faults_at(place)) == 1
    assert len([key for key in place.listed() if key.endswith(".pack")]) <= 2


def test_a_collection_that_is_killed_leaves_what_is_needed(environment: ObjectServer, tmp_path: Path) -> None:
    """Killed at each of its removals in turn: of manifests, of packs, and of notes."""
    direct = opened_place(url(tmp_path))
    source = kept_in(tmp_path / "here", [1, 2, 3], keep=9)
    kills = 0
    with faulty_proxy(environment) as proxy:
        for removal in range(1, 4):
            for kept in steps_in(source.listed()):
                copy_step(source, kept, direct, reuses=False)
            process = copier(tmp_path / "here", url(tmp_path), proxy.port, environment, "1", "1")
            begun = len(proxy.asked)

            def after(number: int, what: str, removal: int = removal, begun: int = begun) -> None:
                removals = [asked for asked in proxy.asked[begun:] if asked.startswith(("POST", "DELETE"))]
                if what == proxy.asked[-1] and len(removals) == removal:
                    process.kill()  # noqa: B023

            proxy.after = after
            process.communicate(timeout=WAIT_S)
            kills += process.returncode == -signal.SIGKILL
            found = faults_at(direct)
            assert found[3] == ""
            assert not [fault for fault in found.values() if fault]
    assert kills == 3
    retain(direct, 1)
    assert faults_at(direct) == {3: ""}
