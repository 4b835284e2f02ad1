"""A whole check of this machine, and of ones that are worse."""

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from holdfast.check import host
from holdfast.check.checking import CheckPlan, fabric_until_s
from holdfast.cli.check import command
from holdfast.record.errors import InputError

TRIES_MAX = 5


def check(*flags: str) -> tuple[int, dict[str, dict[str, object]]]:
    ended = CliRunner().invoke(command, ["--json", "--skip", "gpu", *flags], standalone_mode=False)
    if ended.exception is not None:
        raise ended.exception
    return ended.return_value, {one["name"]: one for one in json.loads(ended.stdout)["checks"]}


def test_this_machine_can_be_checked_and_be_its_own_reference(tmp_path: Path) -> None:
    written = tmp_path / "good.toml"
    words = ("--skip", "clock", "--skip", "kernel", "--write-reference", str(written))
    # What else runs here may keep the disk busy for a while.
    code, found = next((one for _ in range(TRIES_MAX) if not (one := check(*words))[0]), (1, {}))
    assert code == 0
    assert set(found) == {"disk.write", "disk.read", "memory.copy"}
    assert all(one["value"] for one in found.values())
    # Another machine's copies are a thousand times as fast: this one is not good beside it.
    written.write_text(written.read_text(encoding="ascii").replace('memory.copy" = ', 'memory.copy" = 9999'))
    code, found = check("--skip", "clock", "--skip", "kernel", "--reference", str(written))
    assert (code, found["memory.copy"]["ok"]) == (1, False)


def test_what_could_not_be_measured_is_not_called_good(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.touch(0o600)
    token.write_text("a token of tests", encoding="ascii")
    others = [word for kind in ("gpu", "disk", "memory", "clock", "kernel") for word in ("--skip", kind)]
    words = [*others, "--peer", "no-such-host.invalid:29450", "--token-file", str(token)]
    ended = CliRunner().invoke(command, words, standalone_mode=False)
    assert ended.return_value == 0
    assert "not known" in ended.stdout
    assert "0 of 5 checks are good, 5 could not be measured" in ended.stdout
    _, found = check(*others, "--for", "fabric")
    assert found["fabric.in"]["note"] == "needed for fabric, not measured: name a good node with --peer"


@pytest.mark.parametrize("other", ["--peer=n18:29450", "--for=disk", "--reference=good.toml"])
def test_who_answers_is_asked_nothing_else(other: str) -> None:
    with pytest.raises(InputError, match="--answer tries nothing"):
        check("--answer", "127.0.0.1:29450", other)


def test_a_reference_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "good.toml").touch()
    with pytest.raises(InputError, match="exists already"):
        check("--write-reference", str(tmp_path / "good.toml"))


def test_checks_that_are_left_out_exist_and_are_not_all_of_them(tmp_path: Path) -> None:
    for name in ("GPU", "nosuch", ""):
        with pytest.raises(InputError, match="No check's name begins with"):
            check("--skip", name)
    others = [word for kind in ("disk", "memory", "clock", "kernel") for word in ("--skip", kind)]
    with pytest.raises(InputError, match="Every check is skipped"):
        check(*others)
    with pytest.raises(InputError, match="reference cannot be written"):
        check("--write-reference", str(tmp_path / "nowhere" / "good.toml"))


def test_what_the_node_was_drained_for_must_be_proven_good() -> None:
    """This machine has no GPUs: its disk can be cleared, its NVLinks cannot."""
    others = ("--skip", "memory", "--skip", "clock", "--skip", "kernel")
    _, found = check("--for", "disk", *others)
    assert {name: one["untried"] for name, one in found.items()} == {"disk.write": False, "disk.read": False}
    ended = CliRunner().invoke(command, ["--json", "--for", "nvlink", "--skip", "disk", *others])
    found = {one["name"]: one for one in json.loads(ended.stdout)["checks"]}
    assert [(name, one["ok"], one["untried"]) for name, one in found.items()] == [
        ("gpus.reduce", False, True),
        ("gpus.reduce_wrong", False, True),
    ]
    assert found["gpus.reduce"]["note"] == "needed for nvlink, not measured"


def test_what_a_good_node_showed_on_request_is_not_missed_without_it(tmp_path: Path) -> None:
    known = tmp_path / "good.toml"
    known.write_text('"fabric.out" = 12.0\n"gpu0.clock" = 1700.0\n"gpu0.memory" = 4000.0\n')
    others = [word for kind in ("disk", "clock", "kernel") for word in ("--skip", kind)]
    _, found = check("--reference", str(known), *others)
    assert set(found) == {"memory.copy"}
    token = tmp_path / "token"
    token.write_text("a token for tests")
    token.chmod(0o600)
    with socket.create_server(("127.0.0.1", 0)) as nobody:  # one that is busy
        place = f"127.0.0.1:{nobody.getsockname()[1]}"
        peer = ("--peer", place, "--token-file", str(token), "--timeout", "30", "--skip", "memory")
        code, found = check("--reference", str(known), *others, *peer)
    assert (code, found["fabric.out"]["ok"], found["fabric.out"]["value"]) == (0, True, None)
    assert "is busy" in str(found["fabric.out"]["note"])


def test_what_has_to_be_proven_cannot_be_left_out() -> None:
    for part, skipped in (("disk", "disk.read"), ("gpu-memory", "gpu0"), ("pcie", "gpu"), ("host", "clock")):
        with pytest.raises(InputError, match=f"--for {part} needs"):
            check("--for", part, "--skip", skipped)


def test_a_directory_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a directory"):
        check("--directory", str(tmp_path / "nowhere"))


def test_a_disk_that_cannot_be_written_is_not_good() -> None:
    code, found = check("--directory", "/proc")
    assert (code, found["disk.write"]["ok"]) == (1, False)
    assert found["disk.write"]["note"]


def test_errors_of_main_memory_are_counted(tmp_path: Path) -> None:
    for number, count in enumerate(("0", "2", "broken")):
        (tmp_path / f"mc{number}").mkdir()
        (tmp_path / f"mc{number}" / "ue_count").write_text(count, encoding="ascii")
    (found,) = host._memory_errors(tmp_path)
    assert (found.value, found.ok) == (2, False)
    assert list(host._memory_errors(tmp_path / "nothing")) == []


@pytest.mark.soak
def test_the_probe_of_a_machine_without_gpus_tells_nothing() -> None:
    pytest.importorskip("torch", reason="the probe needs torch")
    done = subprocess.run(
        [sys.executable, "-m", "holdfast.train.gpu_probe"], capture_output=True, timeout=120, check=True
    )
    assert b"error" not in done.stdout


@pytest.mark.parametrize(
    ("changed", "gpus", "now_s", "until_s"),
    [
        ({"part": "gpu"}, 8, 5, 20),
        ({"part": "gpu"}, 8, 15, 25),
        ({}, 8, 24, 25),
        ({"part": "fabric"}, 8, 24, 39),
        ({"skipped": ("gpu",)}, 8, 24, 39),
        ({}, 0, 24, 39),
    ],
)
def test_a_busy_peer_leaves_the_gpus_half_of_the_time(
    changed: dict[str, Any], gpus: int, now_s: float, until_s: float
) -> None:
    plan = CheckPlan(gpus=None, folder=Path(), most_s=50.0, since_s=0.0)
    plan = msgspec.structs.replace(plan, **changed)
    assert fabric_until_s(plan, 0.0, now_s, gpus=gpus) == until_s
