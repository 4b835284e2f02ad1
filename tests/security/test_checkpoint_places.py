"""Attacks on the place where checkpoints are kept: making it unreadable must not restart training.

Only a directory that does not exist, or has no checkpoint in it, is empty. Some attacks also work on root;
the rest run as another user.
"""

import os
import pickle
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from hashlib import blake2b
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest
import torch
from listening import tell_nobody
from waiting import WAIT_S

from holdfast.record.errors import InputError, StoreError
from holdfast.train.checkpoint import DirectoryCheckpoints
from holdfast.train.chunks import FOLDER, packs_in
from holdfast.train.manifest_file import encoded, read_manifest
from holdfast.train.opening import load_checkpoint

pytestmark = pytest.mark.slow

OTHER_USER = 65534
SCRIPT = """
import torch
import holdfast.train as hf

with hf.join() as run:
    model = torch.nn.Linear(2, 1)
    state = run.protect(model, torch.optim.SGD(model.parameters(), lr=0.1), lanes=2, seed=1)
    for step in state.steps(3):
        print("step", step.number, flush=True)
        for lane in step.lanes:
            lane.backward(model(torch.ones(4, 2)).square().mean())
        step.commit()
"""


def kept_in(directory: Path) -> DirectoryCheckpoints:
    return DirectoryCheckpoints(directory, told=tell_nobody, read_pauses_s=(0.0, 0.0))


def as_another_user(check: Callable[[], None]) -> None:
    """Run the check in a child process of another user: permissions do not stop root."""
    if os.getuid() != 0:
        check()
        return
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(OTHER_USER)
            os.setuid(OTHER_USER)
            check()
        except BaseException as error:
            os.write(2, repr(error).encode())
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


@pytest.fixture
def place() -> Iterator[Path]:
    """Holds checkpoints of steps 1 and 2, where another user can read them."""
    with TemporaryDirectory() as parent:
        Path(parent).chmod(0o755)
        directory = Path(parent) / "kept"
        checkpoints = kept_in(directory)
        for step in (1, 2):
            checkpoints.save(step, {"step": step, "weights": torch.full((3000,), step)})
        yield directory
        directory.chmod(0o755)


def refused(directory: Path) -> None:
    with pytest.raises(StoreError, match=r"Cannot read .* the state to go on from"):
        kept_in(directory).newest()


def test_a_directory_without_permission_is_not_empty(place: Path) -> None:
    place.chmod(0)
    as_another_user(lambda: refused(place))


def test_a_parent_without_permission_does_not_make_it_empty(place: Path) -> None:
    place.parent.chmod(0)
    try:
        as_another_user(lambda: refused(place))
    finally:
        place.parent.chmod(0o755)


def test_a_newest_file_without_permission_does_not_send_the_run_back(place: Path) -> None:
    (place / "step-000000000002.checkpoint").chmod(0)
    as_another_user(lambda: refused(place))


def test_files_with_input_errors_do_not_start_the_run_anew(place: Path) -> None:
    """Data that storage has lost count as damaged, so the previous checkpoint counts. Without one, the run
    ends: the data may come back.
    """
    lost = [place / "step-000000000002.checkpoint", place / "step-000000000001.checkpoint"]
    for number, file in enumerate(lost):
        file.unlink()
        file.symlink_to("/proc/self/mem")  # a plain file whose first bytes give EIO
        if number == 0:
            loaded = kept_in(place).newest()
            assert loaded is not None
            assert loaded.step == 1
    refused(place)


def test_a_newest_file_whose_filesystem_is_gone_does_not_send_the_run_back(place: Path) -> None:
    broken = place / "step-000000000002.checkpoint"
    broken.unlink()
    broken.symlink_to(place / "unmounted" / "step")
    refused(place)


def packs_of(place: Path, step: int) -> list[Path]:
    manifest = read_manifest(place / f"step-{step:012d}.checkpoint")
    return [place / FOLDER / pack for pack, _ in manifest.packs]


def test_chunks_that_cannot_be_read_do_not_send_the_run_back(place: Path) -> None:
    (pack,) = packs_of(place, 2)
    pack.chmod(0)
    as_another_user(lambda: refused(place))
    (place / FOLDER).chmod(0)
    as_another_user(lambda: refused(place))
    (place / FOLDER).chmod(0o755)
    pack.unlink()
    pack.symlink_to(place / "unmounted" / "pack")
    refused(place)


def test_a_manifest_reads_nothing_outside_of_its_folder(place: Path, tmp_path: Path) -> None:
    """The attacker's manifest is correct except for the places of its chunks."""
    (pack,) = packs_of(place, 2)
    secret = tmp_path / "secret"
    secret.write_bytes(pack.read_bytes())
    sound = read_manifest(place / "step-000000000002.checkpoint")
    for name in (str(secret), f"../../{secret.name}", "", "."):
        forged = msgspec.structs.replace(sound, step=3, packs=((name, sound.packs[0][1]),))
        (place / "step-000000000003.checkpoint").write_bytes(encoded(forged))
        loaded = kept_in(place).newest()
        assert loaded is not None
        assert loaded.step == 2


def test_a_link_to_a_filesystem_that_is_gone_is_not_empty(tmp_path: Path) -> None:
    (tmp_path / "scratch").symlink_to(tmp_path / "unmounted")
    refused(tmp_path / "scratch")
    refused(tmp_path / "scratch" / "run" / "checkpoints")
    assert kept_in(tmp_path / "new" / "run" / "checkpoints").newest() is None


def test_a_file_or_a_loop_in_place_of_the_directory_is_not_empty(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    refused(tmp_path / "file")
    refused(tmp_path / "loop")
    os.mkfifo(tmp_path / "pipe")
    refused(tmp_path / "pipe")


def test_storage_that_comes_back_in_time_is_read(place: Path) -> None:
    away = place.with_name("away")
    place.rename(away)
    place.symlink_to(away / "nowhere")

    def mount() -> None:
        place.unlink()
        away.rename(place)

    mending = threading.Timer(0.2, mount)
    mending.start()
    loaded = DirectoryCheckpoints(place, told=tell_nobody, read_pauses_s=[0.1] * 100).newest()
    mending.join()
    assert loaded is not None
    assert loaded.step == 2


def test_a_directory_in_which_nothing_is_sound_is_not_empty(place: Path) -> None:
    for path in place.glob("step-*"):
        path.write_bytes(b"torn")
    with pytest.raises(StoreError, match=r"Every checkpoint in .* is damaged"):
        kept_in(place).newest()
    assert len(list(place.glob("step-*"))) == 2
    assert len(packs_in(place / FOLDER)) == 2


def test_opening_an_unreadable_checkpoint_gives_a_sentence(place: Path) -> None:
    def opened() -> None:
        with pytest.raises(InputError, match="Cannot read"):
            load_checkpoint(place)

    place.chmod(0)
    as_another_user(opened)


def test_a_run_ends_with_a_sentence_rather_than_begin_again(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    (tmp_path / "kept").symlink_to(tmp_path / "unmounted")
    environment = {**os.environ, "HOLDFAST_CHECKPOINTS": str(tmp_path / "kept"), "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        [sys.executable, str(script)],
        env=environment | {"HOLDFAST_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert ended.returncode == 2, ended
    assert ended.stdout == ""
    assert ended.stderr.startswith(f"holdfast: Cannot read {tmp_path / 'kept'}: No such file or directory.")
    assert "hint: " in ended.stderr
    assert "Traceback" not in ended.stderr


def header(step: int, size_bytes: int, payload: bytes, version: int = 4) -> bytes:
    head = struct.pack(">16sIQQ", b"holdfast.ckpt\r\n\x1a", version, step, size_bytes)
    return head + blake2b(head + bytes(32) + payload, digest_size=32).digest()


def test_a_checkpoint_that_says_another_length_is_not_read_into_memory(place: Path) -> None:
    payload = b"x" * 100
    (place / "step-000000000003.checkpoint").write_bytes(header(3, 1 << 62, payload) + payload)
    loaded = kept_in(place).newest()
    assert loaded is not None
    assert loaded.step == 2


class Command:
    """Unpickled, it makes a file."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> tuple[Callable[..., None], tuple[Path]]:
        return Path.touch, (self._mark,)


@pytest.mark.parametrize("version", [1, 2, 3, 4])
@pytest.mark.parametrize("form", ["torch", "pickle"])
def test_a_pickle_in_a_checkpoint_runs_nothing(place: Path, tmp_path: Path, form: str, version: int) -> None:
    """The attacker can write to the directory, and the file has the right length and hash."""
    mark = tmp_path / "run-by-a-pickle"
    if form == "torch":
        file = BytesIO()
        torch.save({"model": Command(mark)}, file)
        payload = file.getvalue()
    else:
        payload = pickle.dumps(Command(mark))
    step = 9
    forged = place / f"step-{step:012}.checkpoint"
    forged.write_bytes(header(step, len(payload), payload, version) + payload)
    with pytest.raises(InputError):
        load_checkpoint(forged)
    if version < 4:
        with pytest.raises(StoreError, match="an older Holdfast wrote it"):
            kept_in(place).newest()
    else:
        newest = kept_in(place).newest()
        assert newest is not None
        assert newest.step < step  # an unsound one is skipped
    assert not mark.exists()
    # What a reader that trusts it would have done.
    pickle.loads(pickle.dumps(Command(mark)))
    assert mark.exists()
