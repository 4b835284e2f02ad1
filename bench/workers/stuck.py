"""Ways in which a training script gets stuck on one member, or on two: what the run is to find and explain.

Each is what it is called: nothing is pretended, and none of them ends by itself. `ACTS` has them by name.
"""

import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import holdfast.train as hf

POLL_INTERVAL_S = 0.01


class Scene(NamedTuple):
    """Where it happens. folder: what members find each other by."""

    folder: Path
    member: str
    lane: Any


def is_first(folder: Path, member: str) -> bool:
    """Whether this member has not been stuck before; when it was is in a file."""
    try:
        with (folder / f"{member}.struck").open("x", encoding="ascii") as file:
            file.write(str(time.time_ns()))
    except FileExistsError:
        return False
    return True


def endless_loop(scene: Scene) -> None:
    count = 0
    while True:
        count += 1


class _Silent:
    """A dataset whose server never answers."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> bytes:
        ours, self._theirs = socket.socketpair()
        return ours.recv(1)


def stuck_loader(scene: Scene) -> None:
    hf.MapData(_Silent(), batch_size=1)(scene.lane)


def lock_held(scene: Scene) -> None:
    """Two threads, two locks, each in another order."""
    first, second, has_second = threading.Lock(), threading.Lock(), threading.Event()

    def other() -> None:
        with second:
            has_second.set()
            with first:
                return

    with first:
        threading.Thread(target=other, daemon=True).start()
        has_second.wait()
        with second:
            return


def members_deadlocked(scene: Scene) -> None:
    """Each of two waits for what the other sends, and neither sends."""
    meeting = scene.folder / "meeting"
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            with meeting.open("x", encoding="ascii") as file:
                file.write(f"{server.getsockname()[1]}\n")
            peer, _ = server.accept()
    except FileExistsError:
        while not (text := meeting.read_text(encoding="ascii")).endswith("\n"):
            time.sleep(POLL_INTERVAL_S)
        peer = socket.create_connection(("127.0.0.1", int(text)))
    peer.recv(1)


ACTS: dict[str, Callable[[Scene], None]] = {
    "loop": endless_loop,
    "loader": stuck_loader,
    "lock": lock_held,
    "members": members_deadlocked,
}
