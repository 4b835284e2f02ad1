"""A run's checkpoints in further places: fetched before it starts, and filled while it goes on, by a real
process and a real S3 server.
"""

import contextlib
import fcntl
import os
import random
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from object_storage import BUCKET, Fate, FaultyProxy, ObjectServer, faulty_proxy, object_server
from quantity import sampled
from waiting import until

from holdfast.record.errors import InputError
from holdfast.run.endpoint import FILE, Endpoint, reserved, run_directory
from holdfast.train.checkpoint import DirectoryCheckpoints
from holdfast.train.copying import copy_step, fault_at, steps_in
from holdfast.train.fetching import CopyNews, fetch_newest
from holdfast.train.filling import END_S_MIN, FINISH, FillingOrder
from holdfast.train.further_places import LEAVE_S_MAX
from holdfast.train.left_copies import copying_mark, remove_left_copies
from holdfast.train.owning import owner_at
from holdfast.train.place import OWNER, DirectoryStorage, Storage, StorageTrouble
from holdfast.train.places import opened_place

pytestmark = pytest.mark.slow
END_S = 180


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectServer]:
    with object_server(tmp_path_factory.mktemp("storage")) as found:
        yield found


@pytest.fixture
def url(server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    return f"s3://{BUCKET}/{tmp_path.name}"


def save(directory: Path, *steps: int, keep: int = 2) -> None:
    kept = DirectoryCheckpoints(directory, told=lambda *_, **__: None, keep=keep)
    for step in steps:
        kept.save(step, {"step": step, "tensor": torch.full((1000,), step)})


def sound_at(place: Storage) -> list[int]:
    listing = place.listed()
    return [kept.step for kept in steps_in(listing) if not fault_at(place, kept, listing, is_thorough=True)]


def copy_all(source: Path, place: Storage) -> None:
    own = DirectoryStorage(source)
    for kept in steps_in(own.listed()):
        copy_step(own, kept, place, reuses=False)


def damage(pack: Path) -> None:
    data = pack.read_bytes()
    pack.write_bytes(bytes([data[0] ^ 1]) + data[1:])


def pack_of(place: Storage, step: int) -> str:
    (kept,) = (kept for kept in steps_in(place.listed()) if kept.step == step)
    found = re.search(rb"[0-9a-f]{16}-[0-9]{6}\.pack", place.read(kept.keys[0]))
    assert found
    return found[0].decode()


# ---- before the run --------------------------------------------------------------------------------------


class Fetched(list[str]):
    """The lines that fetching printed."""

    def __init__(self, own: Path, *places: Storage) -> None:
        super().__init__()
        pairs = [(one, one) for one in places]
        self.news: list[CopyNews] = fetch_newest([own], pairs, "small", self.append)


def test_the_newest_sound_checkpoint_of_any_place_is_taken(
    server: ObjectServer, url: str, tmp_path: Path
) -> None:
    remote, shared = opened_place(url), DirectoryStorage(tmp_path / "shared")
    assert Fetched(tmp_path / "own", remote, shared) == []  # a run that begins
    save(tmp_path / "origin", 1, 2, 3, keep=9)
    copy_all(tmp_path / "origin", remote)
    save(tmp_path / "older", 1, 2, keep=9)
    copy_all(tmp_path / "older", shared)
    (said,) = fetched = Fetched(tmp_path / "own", remote, shared)
    assert said == f"fetched the checkpoint of step 3 from {url}: 0.0 MB"
    assert [(one.step, one.origin, one.reason) for one in fetched.news] == [(3, url, "")]
    assert sound_at(DirectoryStorage(tmp_path / "own")) == [3]
    assert Fetched(tmp_path / "own", remote, shared) == []  # this machine has it now
    # Damaged there: skipped, and reported; the next place has an older one.
    for step in (3, 2):
        damage(server.root / tmp_path.name / "chunks" / pack_of(remote, step))
    again = Fetched(tmp_path / "again", remote, shared)
    why = "its pack 000000.pack is damaged at byte 0; trying the next"
    assert [re.sub(r"[0-9a-f]{16}-", "", said) for said in again] == [
        f"the checkpoint of step 3 in {url} cannot be used: {why}",
        f"the checkpoint of step 2 in {url} cannot be used: {why}",
        f"fetched the checkpoint of step 2 from {shared.name}: 0.0 MB",
    ]


def test_damage_on_this_machine_is_mended_from_a_further_place(url: str, tmp_path: Path) -> None:
    remote = opened_place(url)
    save(tmp_path / "own", 1, 2)
    copy_all(tmp_path / "own", remote)
    own = DirectoryStorage(tmp_path / "own")
    damage(tmp_path / "own" / "chunks" / pack_of(own, 2))
    fetched = Fetched(tmp_path / "own", remote)
    assert "cannot be used" in fetched[0]
    assert fetched[1] == f"fetched the checkpoint of step 2 from {url}: 0.0 MB"
    assert sound_at(own) == [1, 2]


def test_a_place_that_cannot_be_reached_stops_only_a_run_that_has_nothing_else(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    away = opened_place(url, request_s=1)
    with pytest.raises(InputError, match=f"Cannot use {url} for checkpoints: it cannot be reached"):
        Fetched(tmp_path / "own", away)
    save(tmp_path / "own", 1)
    (said,) = Fetched(tmp_path / "own", away)
    assert said.endswith("It may have a newer checkpoint than this machine has.")


def test_no_run_begins_anew_or_goes_back_because_the_newest_could_not_be_fetched(
    server: ObjectServer, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path / "origin", 1, 2)
    copy_all(tmp_path / "origin", opened_place(url))
    newest = pack_of(opened_place(url), 2)
    with faulty_proxy(server, lambda number, what: "fail" if newest in what else "pass") as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")
        faulty = opened_place(url)
        with pytest.raises(InputError, match=f"Cannot fetch the checkpoint of step 2 from {url}"):
            Fetched(tmp_path / "own", faulty)
        assert not sound_at(DirectoryStorage(tmp_path / "own"))
        save(tmp_path / "own", 1)  # this machine has a checkpoint to resume from
        (said,) = Fetched(tmp_path / "own", faulty)
        assert said.startswith("Cannot fetch the checkpoint of step 2")


def test_no_run_begins_anew_because_a_filesystem_is_not_mounted(tmp_path: Path) -> None:
    (tmp_path / "there").symlink_to(tmp_path / "mount" / "small")
    with pytest.raises(InputError, match="a link in its path is broken"):
        Fetched(tmp_path / "own", DirectoryStorage(tmp_path / "there"))


def test_no_run_begins_anew_because_all_checkpoints_are_damaged(tmp_path: Path) -> None:
    there = DirectoryStorage(tmp_path / "there")
    save(tmp_path / "there", 1)
    damage(tmp_path / "there" / "chunks" / pack_of(there, 1))
    with pytest.raises(InputError, match="all of them are damaged"):
        Fetched(tmp_path / "own", there)


def test_a_checkpoint_of_another_version_is_not_skipped(tmp_path: Path) -> None:
    there = DirectoryStorage(tmp_path / "there")
    save(tmp_path / "there", 1, 2)
    path = tmp_path / "there" / "step-000000000002.checkpoint"
    header, rest = path.read_bytes()[:20], path.read_bytes()[20:]
    path.write_bytes(header[:16] + (99).to_bytes(4) + rest[:-1] + bytes([rest[-1] ^ 1]))
    with pytest.raises(InputError, match=r"Cannot go on from step 2 in .*: a newer Holdfast wrote it"):
        Fetched(tmp_path / "own", there)
    assert not (tmp_path / "own").exists()


def test_a_bucket_that_does_not_exist_is_a_mistake(url: str, tmp_path: Path) -> None:
    save(tmp_path / "own", 1)
    with pytest.raises(InputError, match="there is no such bucket"):
        Fetched(tmp_path / "own", opened_place("s3://nowhere/x"))


# ---- while it goes on ------------------------------------------------------------------------------------


class Filling:
    """The process that fills a place."""

    def __init__(self, order: FillingOrder, environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "holdfast.train.filling"],
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.lines: list[str] = []
        self._reading = threading.Thread(target=self._read)
        self._reading.start()
        self._tell(msgspec.json.encode(order) + b"\n")

    def _tell(self, words: bytes) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(words)
            self.process.stdin.flush()

    def _read(self) -> None:
        assert self.process.stderr is not None
        self.lines.extend(iter(lambda: self.process.stderr.readline().decode(), ""))  # type: ignore[union-attr]

    def said(self, text: str) -> bool:
        return any(text in line for line in self.lines)

    def finish(self) -> int:
        self._tell(FINISH)
        return self.close()

    def let_go(self) -> None:
        """As if its parent were gone."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()

    def close(self) -> int:
        self.let_go()
        code = self.process.wait(END_S)
        self._reading.join()
        assert self.process.stderr is not None
        self.process.stderr.close()
        return code


@contextlib.contextmanager
def filling(
    tmp_path: Path,
    url: str,
    server: ObjectServer,
    *,
    port: int | None = None,
    secret: str | None = None,
    **told: Any,
) -> Iterator[Filling]:
    order = FillingOrder(
        **{
            "directories": (str(tmp_path / "own"),),
            "place": url,
            "keep": 2,
            "run": "small",
            "home": str(tmp_path / "home"),
            "end_s": float(END_S),
            **told,
        }
    )
    variables = server.environment(port, *([secret] if secret else []))
    found = Filling(order, variables)
    try:
        yield found
    finally:
        if found.process.poll() is None:
            found.process.kill()
            found.close()


def test_a_place_is_kept_filled_and_the_last_one_is_waited_for(
    server: ObjectServer, url: str, tmp_path: Path
) -> None:
    remote = opened_place(url)
    with filling(tmp_path, url, server) as filler:
        for step in (1, 2, 3):
            save(tmp_path / "own", step)
            until(lambda step=step: step in sound_at(remote), lambda: filler.lines)  # type: ignore[misc]
        # If memory runs out, this process is killed before any that trains.
        assert Path(f"/proc/{filler.process.pid}/oom_score_adj").read_text() == "1000\n"
        save(tmp_path / "own", 4)
        assert filler.finish() == 0
        assert filler.lines[-1] == f"holdfast: step 4 is in {url}\n"
    assert sound_at(remote) == [3, 4]
    assert not list((tmp_path / "own").glob(".copying-*/"))
    assert not remote.listed("writing")


def test_the_last_copy_is_made_though_the_launcher_dies(
    server: ObjectServer, url: str, tmp_path: Path
) -> None:
    save(tmp_path / "own", 1)
    with filling(tmp_path, url, server) as filler:
        assert filler.close() == 0
    assert sound_at(opened_place(url)) == [1]


def test_a_run_that_outlives_its_launcher_is_copied_until_it_is_over_or_lost(
    server: ObjectServer, url: str, tmp_path: Path
) -> None:
    home, remote = tmp_path / "home", opened_place(url)
    endpoint = Endpoint(host="127.0.0.1", port=1, token="", pid=os.getpid())
    with (
        contextlib.ExitStack() as going,
        filling(tmp_path, url, server, is_detached=True) as over,
    ):
        going.enter_context(reserved(home, "small")).publish(endpoint)
        over.let_go()
        for step in (1, 2):
            save(tmp_path / "own", step)
            until(lambda step=step: step in sound_at(remote), lambda: over.lines)  # type: ignore[misc]
        going.close()
        assert over.close() == 0
    left = run_directory(home, "small") / FILE
    left.parent.mkdir(parents=True, exist_ok=True)
    left.write_bytes(msgspec.json.encode(endpoint))  # by a coordinator that was killed
    with filling(tmp_path, url, server, is_detached=True) as lost:
        assert lost.close() == 0


def test_storage_that_fails_is_told_once_and_used_again(
    server: ObjectServer, url: str, tmp_path: Path
) -> None:
    remote = opened_place(url)
    fate: list[Fate] = ["refuse"]
    with (
        faulty_proxy(server, lambda number, what: fate[0]) as proxy,
        filling(tmp_path, url, server, port=proxy.port) as filler,
    ):
        save(tmp_path / "own", 1)
        until(lambda: filler.said("it answers 503"), lambda: filler.lines)
        seen = len(proxy.asked)
        until(lambda: len(proxy.asked) > seen)  # it tries again
        save(tmp_path / "own", 2)
        fate[0] = "pass"
        until(lambda: 2 in sound_at(remote), lambda: filler.lines)
        until(lambda: filler.said(f"{url} is in use again: step"), lambda: filler.lines)
        assert filler.finish() == 0
        assert len([line for line in filler.lines if "could not be copied" in line]) == 1, filler.lines


def test_the_end_waits_for_a_bounded_time(server: ObjectServer, url: str, tmp_path: Path) -> None:
    save(tmp_path / "own", 7)
    with (
        faulty_proxy(server, lambda number, what: "refuse") as proxy,
        filling(tmp_path, url, server, port=proxy.port, end_s=1.0) as filler,
    ):
        until(lambda: filler.said("it answers 503"), lambda: filler.lines)
        assert filler.finish() == 1
        assert "step 7 could not be copied" in filler.lines[0]
        assert filler.lines[-1].startswith(f"holdfast: step 7 is NOT in {url}: it answers 503")


def test_a_place_that_denies_access_is_not_waited_for(server: ObjectServer, url: str, tmp_path: Path) -> None:
    """The last copy has more time than the test waits."""
    save(tmp_path / "own", 7)
    with filling(tmp_path, url, server, secret="another", end_s=10.0 * END_S) as filler:
        assert filler.finish() == 1
        (said,) = (line for line in filler.lines if "NOT" in line)
        assert said.startswith(f"holdfast: step 7 is NOT in {url}: access denied (")
        copy = f"to copy it later: holdfast checkpoint copy {tmp_path / 'own'} --to {url} --run small"
        assert said.endswith(f"; {copy}\n")


WAITING = """
import sys
from functools import partial
from pathlib import Path
from holdfast.run.launcher import Order
from holdfast.run.state import RunPolicy
from holdfast.train import further_places
from holdfast.train.filling import FillingOrder
from holdfast.train.further_places import filled, further_place

own, home, leave_s, end_s, *urls = sys.argv[1:]
further_places.LEAVE_S_MAX = float(leave_s)
further_places.FillingOrder = partial(FillingOrder, end_s=float(end_s))
order = Order(
    policy=RunPolicy(run="small"), is_named=True, command=("true",), home=Path(home), checkpoints=(Path(own),)
)
with filled(order, [further_place(url) for url in urls], lambda text: print(text, file=sys.stderr)):
    pass
print("over")
"""


def waiting(
    tmp_path: Path, server: ObjectServer, port: int, leave_s: float, end_s: float, *urls: str
) -> "subprocess.Popen[str]":
    """A run that is over, and waits for its last copies."""
    words = (tmp_path / "own", tmp_path / "home", leave_s, end_s, *urls)
    return subprocess.Popen(
        [sys.executable, "-c", WAITING, *map(str, words)],
        env={**os.environ, **server.environment(port)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("number", sampled([signal.SIGTERM, signal.SIGINT], [signal.SIGTERM]))
def test_a_signal_ends_the_waiting_for_the_last_copy(
    server: ObjectServer, url: str, tmp_path: Path, number: signal.Signals
) -> None:
    save(tmp_path / "own", 7)
    with faulty_proxy(server, lambda _, what: "refuse" if what.startswith("PUT") else "pass") as proxy:
        process = waiting(tmp_path, server, proxy.port, LEAVE_S_MAX, END_S_MIN, url)
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if "waiting up to" in line:
                process.send_signal(number)
        out, _ = process.communicate(timeout=END_S)
    assert (process.returncode, out) == (0, "over\n"), lines
    # The second form, if the copying process is too slow to answer.
    assert f"step 7 is NOT in {url}: " in lines[-1] or f"step 7 may not be in {url}; " in lines[-1]
    assert f"to copy it later: holdfast checkpoint copy {tmp_path / 'own'} --to {url}" in lines[-1]


def test_all_fillers_are_told_to_leave_before_one_is_waited_for(
    server: ObjectServer, url: str, tmp_path: Path
) -> None:
    """The first cannot hear it: it is stopped, and has more time to leave than the test takes."""
    save(tmp_path / "own", 7)
    urls = [f"{url}-{name}" for name in ("first", "second")]
    is_over = threading.Event()

    def decide(_: int, what: str) -> Fate:
        if what.startswith("PUT") and ".pack" in what:
            is_over.wait(END_S)
        return "pass"

    with faulty_proxy(server, decide) as proxy:
        process = waiting(tmp_path, server, proxy.port, 10.0 * END_S, END_S, *urls)
        lines: list[str] = []

        def read_until(*words: str) -> None:
            assert process.stderr is not None
            while not all(any(word in line for line in lines) for word in words):
                lines.append(process.stderr.readline())
                assert lines[-1], lines

        read_until(*(f"for step 7 to be in {one}" for one in urls))
        first, _ = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(first), signal.SIGSTOP)
        try:
            process.send_signal(signal.SIGINT)
            read_until(f"step 7 is NOT in {urls[1]}: the waiting was interrupted; ")
            assert process.poll() is None  # it waits for the first
        finally:
            os.kill(int(first), signal.SIGCONT)
            is_over.set()
        out, _ = process.communicate(timeout=END_S)
    assert (process.returncode, out) == (0, "over\n"), lines


class NoteLost:
    """A place that answers everything except whose it is."""

    def __init__(self, place: Storage) -> None:
        self._place = place

    def read(self, key: str) -> bytes:
        if key == OWNER:
            raise StorageTrouble("503: slow down")
        return self._place.read(key)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._place, name)


def test_a_place_belongs_to_one_run(server: ObjectServer, url: str, tmp_path: Path) -> None:
    save(tmp_path / "own", 1)
    with filling(tmp_path, url, server) as filler:
        assert filler.finish() == 0
    place = opened_place(url)
    assert owner_at(place) == "small"
    assert fetch_newest([tmp_path / "again"], [(place, place)], "small", lambda said: None)
    with pytest.raises(InputError) as refused:
        fetch_newest([tmp_path / "other"], [(place, place)], "large", lambda said: None)
    assert refused.value.sentence == f"{url} has the checkpoints of the run 'small', but this run is 'large'."
    assert f"holdfast checkpoint copy {url} --to PLACE" in refused.value.hint
    assert not (tmp_path / "other").exists()
    # If the owner is unknown, nothing is taken from the place.
    with pytest.raises(InputError, match="Cannot use"):
        fetch_newest([tmp_path / "other"], [(NoteLost(place), place)], "large", lambda said: None)
    assert not list((tmp_path / "other").rglob("*.checkpoint"))
    # A run that did not check it, because it was going on elsewhere, does not write there either.
    save(tmp_path / "large", 2)
    with filling(tmp_path, url, server, run="large", directories=(str(tmp_path / "large"),)) as filler:
        assert filler.finish() == 1
        assert "step 2 is NOT in" in filler.lines[-1]
        assert "it has the checkpoints of the run 'small'" in filler.lines[-1]
    assert sound_at(place) == [1]
    # A copy made by hand has no owner yet.
    other = opened_place(f"{url}-other")
    copy_all(tmp_path / "own", other)
    assert fetch_newest([tmp_path / "other"], [(other, other)], "large", lambda said: None)
    place.remove([key for key in place.listed() if key.endswith(".checkpoint")])
    assert fetch_newest([tmp_path / "third"], [(place, place)], "large", lambda said: None) == []


def test_links_that_a_crash_has_left_are_removed_unless_a_copy_is_going_on(tmp_path: Path) -> None:
    left, used = (tmp_path / copying_mark(place) for place in ("s3://gone/x", "s3://used/x"))
    for folder in (left, used):
        (folder / "chunks").mkdir(parents=True)
        (folder / "chunks" / "pack").write_bytes(b"bytes")
    with used.with_name(f"{used.name}.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        remove_left_copies([tmp_path / "nowhere", tmp_path])
        until(lambda: not left.exists())
        assert used.exists()


def test_a_damaged_checkpoint_is_not_copied(server: ObjectServer, url: str, tmp_path: Path) -> None:
    save(tmp_path / "own", 1)
    damage(tmp_path / "own" / "chunks" / pack_of(DirectoryStorage(tmp_path / "own"), 1))
    with filling(tmp_path, url, server) as filler:
        until(lambda: filler.said("is damaged"), lambda: filler.lines)
        save(tmp_path / "own", 2)
        until(lambda: sound_at(opened_place(url)) == [2], lambda: filler.lines)
        assert filler.finish() == 0


def test_two_fill_one_place_from_one_directory_and_one_does_it(
    server: ObjectServer, url: str, tmp_path: Path
) -> None:
    """As on nodes of one machine, or machines that share a directory; if one dies, the other does it."""
    with filling(tmp_path, url, server) as one, filling(tmp_path, url, server) as other:
        save(tmp_path / "own", 1)
        until(lambda: sound_at(opened_place(url)) == [1])
        one.process.kill()
        one.close()
        save(tmp_path / "own", 2)
        until(lambda: sound_at(opened_place(url))[-1] == 2)
        assert other.finish() == 0


def test_parts_of_a_sharded_model_make_a_step_together(
    server: ObjectServer, url: str, tmp_path: Path
) -> None:
    """Two machines, each with its own part; one of them is a step ahead."""
    remote = opened_place(url)
    one, other = tmp_path / "one", tmp_path / "other"
    save(one / "shard-0-of-2", 1, 2)
    save(other / "shard-1-of-2", 1)
    with filling(tmp_path, url, server, directories=(str(other),)) as second:
        until(lambda: "shard-1-of-2/step-000000000001.checkpoint" in remote.listed())
        with filling(tmp_path, url, server, directories=(str(one),)) as first:
            until(lambda: sound_at(remote) == [1], lambda: first.lines)
            assert first.finish() == 0
        assert second.finish() == 0
    assert sound_at(remote) == [1]


@pytest.mark.parametrize("seed", sampled(range(10), [0]))
def test_a_process_that_is_killed_again_and_again_tears_nothing(
    server: ObjectServer, url: str, tmp_path: Path, seed: int
) -> None:
    draws = random.Random(seed)
    remote = opened_place(url)
    rounds, newest = (2 if seed == 0 else 30), 0
    with faulty_proxy(server) as proxy:
        for step in range(1, rounds + 1):
            save(tmp_path / "own", step)
            with filling(tmp_path, url, server, port=proxy.port) as filler:
                _kill_at(proxy, len(proxy.asked) + draws.randrange(20), filler.process.pid)
                filler.finish()
            proxy.decide = lambda number, what: "pass"
            there = [kept.step for kept in steps_in(remote.listed())]
            assert sound_at(remote) == there, (seed, step)
            assert newest <= max(there, default=0) <= step
            newest = max(there, default=0)
        with filling(tmp_path, url, server, port=proxy.port) as filler:
            assert filler.finish() == 0
    assert sound_at(remote)[-1] == rounds


def _kill_at(proxy: FaultyProxy, number: int, pid: int) -> None:
    def decide(asked: int, what: str) -> Fate:
        if asked == number:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return "pass"

    proxy.decide = decide
