"""A checkpoint that is being proven stays, and no longer than its prover lives: a real process, killed."""

import subprocess
import sys
from pathlib import Path

import pytest
from listening import tell_nobody

from holdfast.train.checkpoint import DirectoryCheckpoints
from holdfast.train.holds import held, held_steps
from holdfast.train.parts import prune

pytestmark = pytest.mark.slow

HOLDER = """
import sys
from pathlib import Path
from holdfast.train.holds import held

with held(Path(sys.argv[1]), [1]):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_checkpoint_is_held_until_its_holder_is_done_or_killed(tmp_path: Path) -> None:
    kept = DirectoryCheckpoints(tmp_path, told=tell_nobody)
    kept.save(1, {})
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    assert holder.stdin is not None
    assert holder.stdout.readline() == b"held\n"
    for step in (2, 3, 4):
        kept.save(step, {})
    assert kept.steps() == [1, 3, 4]
    assert prune(tmp_path, 1)[0] == [3]
    assert kept.steps() == [1, 4]
    holder.kill()
    holder.wait()
    holder.stdin.close()
    holder.stdout.close()
    kept.save(5, {})
    assert kept.steps() == [4, 5]
    assert not list(tmp_path.glob(".*held*"))


def test_what_is_held_is_let_go_at_the_end(tmp_path: Path) -> None:
    with held(tmp_path, [7, 9]):
        assert held_steps(tmp_path) == {7, 9}
    assert held_steps(tmp_path) == set()
    assert not list(tmp_path.iterdir())
    with held(tmp_path / "nowhere", [7]):  # a directory that cannot be written to
        assert held_steps(tmp_path / "nowhere") == set()
