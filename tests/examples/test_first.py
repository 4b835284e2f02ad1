"""The scripts that the README names, as a newcomer runs them: killed meanwhile, and with the same numbers."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from launching import Launched
from waiting import WAIT_S

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
HOLDFAST = (sys.executable, "-m", "holdfast")
STEPS = 50
"""The examples print a line after each 50th step."""

Begin = Callable[..., Launched]


def environment(folder: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST")}
    return {**kept, "HOLDFAST_HOME": str(folder / "home"), "OMP_NUM_THREADS": "1"}


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    begun: list[Launched] = []

    def one(*words: object) -> Launched:
        process = subprocess.Popen(
            [*HOLDFAST, "run", *map(str, words)],
            cwd=tmp_path,
            env=environment(tmp_path),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        begun.append(Launched(process))
        return begun[-1]

    yield one
    for launched in begun:
        launched.close()


def is_killed(folder: Path, run: str) -> bool:
    """Whether a worker could be killed; at first there is none yet."""
    words = (*HOLDFAST, "chaos", run, "kill")
    return subprocess.run(words, env=environment(folder), capture_output=True, check=False).returncode == 0


def done(folder: Path, *words: object) -> str:
    """The output of a command that succeeds."""
    ended = subprocess.run(
        list(map(str, words)),
        cwd=folder,
        env=environment(folder),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def losses(lines: "list[str] | str") -> list[str]:
    text = lines if isinstance(lines, str) else "\n".join(lines)
    return re.findall(r"step \d+: loss [\d.]+", text)


def test_the_readme_shows_the_first_example_and_names_only_scripts_that_exist() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"```python\n{(ROOT / 'examples' / 'train.py').read_text(encoding='utf-8')}```" in readme
    scripts = re.findall(r"^holdfast run .*?(\S+\.py)", readme, re.MULTILINE)
    assert scripts == ["examples/train.py", "examples/fsdp.py", "examples/ddp.py"]
    assert all((ROOT / script).is_file() for script in scripts)


def test_the_first_example_is_killed_from_another_terminal_and_comes_to_the_same_loss(
    begin: Begin, tmp_path: Path
) -> None:
    """It runs until it has gone on after the kill, however long the machine takes for that."""
    example = ROOT / "examples" / "train.py"
    run = begin("--run", "mine", "--nproc-per-node", 2, example, 1_000 * STEPS)
    run.until(lambda: bool(losses(run.out)))
    done(tmp_path, *HOLDFAST, "chaos", "mine", "kill")
    run.until_said("lost (SIGKILL)")
    before = len(losses(run.out))
    run.until(lambda: len(losses(run.out)) > before + 1)
    done(tmp_path, *HOLDFAST, "stop", "mine")
    run.wait()
    seen = losses(run.out)
    assert seen == losses(done(tmp_path, sys.executable, example, len(seen) * STEPS))


def test_a_torchrun_script_runs_unchanged_and_goes_on_after_a_failure(begin: Begin, tmp_path: Path) -> None:
    example = ROOT / "examples" / "ddp.py"
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", 2)
    expected = losses(done(tmp_path, *torchrun, example, 2 * STEPS, "with-torchrun.pt"))
    assert len(expected) == 2
    run = begin("--run", "first", "--nproc-per-node", 2, example, STEPS, "here.pt")
    run.until(lambda: is_killed(tmp_path, "first"))
    assert run.wait() == 0
    assert any("restart 1 of at most 3" in line for line in run.err)
    assert losses(run.out)[-1:] == expected[:1] != []
    second = begin("--nproc-per-node", 2, example, 2 * STEPS, "here.pt")
    assert second.wait() == 0
    assert losses(second.out) == expected[1:]  # from the checkpoint of the first


def test_a_sharded_script_runs_with_a_replica_of_two(begin: Begin) -> None:
    run = begin("--nproc-per-node", 2, "--shard", 2, ROOT / "examples" / "fsdp.py", STEPS)
    assert run.wait() == 0
    assert any(f"completed: step {STEPS}" in line for line in run.err)
    assert len(losses(run.out)) == 1
