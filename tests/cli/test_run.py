"""`holdfast run` and `holdfast chaos` on the command line: torchrun's flags, mistakes, and what is recorded.

What the processes do is tested in tests/run.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from waiting import WAIT_S

pytestmark = pytest.mark.slow

ENVIRONMENT = (
    "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE ROLE_RANK ROLE_WORLD_SIZE "
    "ROLE_NAME TORCHELASTIC_RUN_ID TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS OMP_NUM_THREADS"
)
PRINTS = f"""
import os, sys
print(*(os.environ[name] for name in {ENVIRONMENT!r}.split()), *sys.argv[1:])
assert int(os.environ["MASTER_PORT"]) and os.environ["MASTER_ADDR"] == "127.0.0.1"
"""
DDP = """
import os, signal, torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
for step in range(6):
    model(torch.ones(1, 2)).sum().backward()
    if step == 3 and dist.get_rank() == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)
print("rank", dist.get_rank(), "done")
dist.destroy_process_group()
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(PRINTS, encoding="utf-8")
    return path


def complaint(done: Any) -> str:
    """The sentence of a refusal, after checking that it is one, and that nothing was begun."""
    assert done.code == 2, done
    assert done.out == ""
    sentence, *hints = done.err.splitlines()
    assert sentence.startswith("holdfast: ")
    assert sentence.endswith("."), sentence
    assert [hint.startswith("  hint: ") for hint in hints] == [True], hints
    return str(sentence.removeprefix("holdfast: "))


def test_the_environment_and_the_scripts_own_flags(holdfast: Any, script: Path) -> None:
    done = holdfast("run", "--nproc-per-node=2", "--run", "here", script, "--lr", "3e-4", "-m", "--help")
    assert done.code == 0, done.err
    rest = "default here 0 3 1 --lr 3e-4 -m --help"
    assert sorted(done.out.splitlines()) == [f"[n0.{r}] {r} {r} 2 2 0 1 {r} 2 {rest}" for r in (0, 1)]


def test_nodes_of_one_machine_know_of_each_other(holdfast: Any, tmp_path: Path) -> None:
    """They share its GPUs."""
    (tmp_path / "train.py").write_text(
        "import os; print(os.environ['HOLDFAST_LOCAL_NODE'])", encoding="utf-8"
    )
    done = holdfast("run", "--nodes", "2", "--nnodes", "2", "--nproc-per-node", "1", "train.py")
    assert done.code == 0, done.err
    assert sorted(done.out.splitlines()) == ["[n0.0] 0/2", "[n1.0] 1/2"]


def test_torchruns_spellings_and_flags_without_effect(holdfast: Any, script: Path) -> None:
    flags = (
        "--nproc_per_node=1 --nnodes=1 --max_restarts=0 --rdzv_backend=c10d --rdzv_id=same --role=trainer "
        "--rdzv_endpoint=localhost:0 --monitor_interval=5 --start_method=spawn --standalone"
    )
    done = holdfast("run", *flags.split(), script)
    assert done.code == 0, done.err
    assert done.out == "[n0.0] 0 0 1 1 0 1 0 1 trainer same 0 0 1\n"


def test_an_argument_that_is_no_text(holdfast: Any, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import os, sys; print(os.fsencode(sys.argv[1]))", encoding="utf-8")
    done = holdfast("run", "train.py", os.fsdecode(b"caf\xe9.txt"))
    assert (done.code, done.out) == (0, "[n0.0] b'caf\\xe9.txt'\n"), done.err


def test_an_address_that_is_only_how_others_reach_this_node(holdfast: Any, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import os; print(os.environ['MASTER_ADDR'])", encoding="utf-8")
    done = holdfast("run", "--local-addr", "192.0.2.7", "train.py")
    assert (done.code, done.out) == (0, "[n0.0] 192.0.2.7\n"), done.err


def test_a_start_that_differs_from_the_one_before_it_is_told_and_needs_a_word(
    holdfast: Any, script: Path, tmp_path: Path
) -> None:
    again = ("run", "--run", "mine", "--checkpoints", "kept", script)
    assert holdfast(*again, "--lr", "0.1").code == 0
    told = "was started differently before: --lr is 0.2, was 0.1"
    other = holdfast(*again, "--lr", "0.2")
    assert other.code == 0  # there is no checkpoint that it could go on from
    assert f"{told}; the record has both under this name" in other.err
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "step-000000000020.checkpoint").touch()
    assert "differently" not in holdfast(*again, "--lr", "0.2").err
    script.write_text("# another\n" + PRINTS, encoding="utf-8")
    refused = holdfast(*again, "--lr", "0.1")
    assert complaint(refused) == (
        "The run 'mine' has a checkpoint of step 20 and was started differently before: "
        f"the script {script} has changed; --lr is 0.1, was 0.2."
    )
    assert "give this one another name with --run" in refused.err
    assert "put --changed before the script. It was complete" in refused.err
    wanted = holdfast("run", "--changed", *again[1:], "--lr", "0.1")
    assert wanted.code == 0
    assert "what the checkpoint holds stays as it was, such as the optimizer's learning rate" in wanted.err
    assert "differently" not in holdfast(*again, "--lr", "0.1").err
    starts = holdfast("events", "mine", "--kind", "run.started", "--json").out.splitlines()
    assert [json.loads(line)["arguments"] for line in starts] == [
        ["--lr", rate] for rate in ("0.1", "0.2", "0.2", "0.1", "0.1")
    ]


def test_a_module(holdfast: Any, tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "train.py").write_text("print(__name__, __package__)", encoding="utf-8")
    done = holdfast("run", "-m", "package.train")
    assert (done.code, done.out) == (0, "[n0.0] __main__ package\n"), done.err


def test_a_program_of_its_own(holdfast: Any) -> None:
    done = holdfast("run", "--no-python", "echo", "one", "two")
    assert (done.code, done.out) == (0, "[n0.0] one two\n"), done.err


def test_a_users_files_are_not_taken_for_ours(
    environment: dict[str, str], script: Path, tmp_path: Path
) -> None:
    (tmp_path / "socket.py").write_text("raise RuntimeError('not the one that was meant')", encoding="utf-8")
    installed = Path(sys.executable).with_name("holdfast")
    subprocess.run([installed, "run", script], env=environment, cwd=tmp_path, timeout=WAIT_S, check=True)


def test_output_is_kept_in_files(holdfast: Any, script: Path, tmp_path: Path) -> None:
    done = holdfast("run", "--run", "kept", "--log-dir", "logs", "--tee", "3", script)
    assert done.code == 0, done.err
    kept = (tmp_path / "logs" / "kept" / "n0.0" / "stdout.log").read_text(encoding="utf-8")
    assert done.out == f"[n0.0] {kept}"


def test_a_live_display_leaves_stdout_to_the_script(holdfast: Any, script: Path) -> None:
    done = holdfast("run", "--live", "--run", "shown", script)
    assert done.code == 0, done.err
    assert done.out.startswith("[n0.0] 0 0 1 1 ")
    assert done.out.count("\n") == 1
    assert "node n0 joined" in done.err


def test_a_ddp_script_goes_on_unchanged_and_its_restart_is_in_the_record(
    holdfast: Any, tmp_path: Path
) -> None:
    (tmp_path / "ddp.py").write_text(DDP, encoding="utf-8")
    done = holdfast("run", "--nproc-per-node", "2", "--run", "ddp", "ddp.py")
    assert done.code == 0, done.err
    assert sorted(line.partition(" ")[2] for line in done.out.splitlines()) == ["rank 0 done", "rank 1 done"]
    lost = holdfast("events", "ddp", "--kind", "member.lost").out
    assert "n0.1" in lost
    assert "SIGKILL" in lost
    assert "restart" in holdfast("events", "ddp", "--kind", "action.taken").out
    assert "1 restart" in holdfast("report", "ddp").out


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ("nowhere.py", "nowhere.py cannot be read: No such file or directory."),
        (".", "is a directory."),
        ("-m nothing.there", "There is no module 'nothing'."),
        ("-m json.there", "There is no module 'json.there'."),
        ("-m json", "a package without a __main__."),
        ("-m --no-python train.py", "exclude each other."),
        ("--no-python ./nothing", "There is no program ./nothing."),
        ("--nproc-per-node 0 train.py", "is not a number of members from 1 to 1024."),
        ("--nproc-per-node tpu train.py", "is not a number of members from 1 to 1024."),
        ("--nproc-per-node 8589934592 train.py", "is not a number of members from 1 to 1024."),
        ("--nproc-per-node gpu train.py", "This node has no GPU"),
        ("--nnodes 3:2 train.py", "is not a number of nodes."),
        ("--nnodes 0 train.py", "is not a number of nodes."),
        ("--nnodes 2 --nodes 3 train.py", "brings more nodes than"),
        ("--coordinator host:port train.py", "is not in the form HOST:PORT."),
        ("--coordinator 127.0.0.1:99999 train.py", "is not in the form HOST:PORT."),
        ("--coordinator no-such-host.invalid:29400 train.py", "is unknown here."),
        ("--coordinator n1..site:29400 train.py", "is unknown here."),
        ("--rdzv-backend etcd train.py", "'etcd'"),
        ("--redirects 4 train.py", "--redirects 4 does not name streams."),
        ("--tee 0:3,1 train.py", "--tee 0:3,1 does not name streams."),
        ("--local-ranks-filter 0,two train.py", "is not a list of local ranks."),
        ("--rdzv-conf join_timeout train.py", "is not a list of keys and values."),
        ("--rdzv-conf join_timeout=long train.py", "is not a number of seconds."),
        ("--signals-to-handle SIGTERM,SIGWHAT train.py", "there is no signal SIGWHAT."),
        ("--signals-to-handle SIGKILL train.py", "no process can handle SIGKILL."),
        ("--numa-binding node train.py", "--numa-binding node is not supported"),
        ("--logs-specs mine train.py", "--logs-specs mine is not supported"),
        ("--virtual-local-rank --nproc-per-node 2 train.py", "has fewer."),
        ("--run ../up train.py", "cannot be the name of a run."),
        ("--chaos nowhere.toml train.py", "cannot be read"),
        ("--chaos 0 train.py", "is not a rate of faults."),
        ("--chaos nan train.py", "is not a rate of faults."),
        ("", "Missing argument 'SCRIPT'."),
    ],
)
def test_mistakes_are_told_before_anything_is_started(
    holdfast: Any, script: Path, tmp_path: Path, flags: str, sentence: str
) -> None:
    assert sentence in complaint(holdfast("run", *flags.split(), CUDA_VISIBLE_DEVICES=""))
    assert script.exists()
    assert not (tmp_path / "home" / "runs").exists()


def test_a_run_that_skipped_nothing_needs_no_skipping(holdfast: Any, script: Path, tmp_path: Path) -> None:
    rows = ["step,time", *(f"{step},{1_760_000_000 + 10 * step}" for step in range(1, 4))]
    (tmp_path / "steps.csv").write_text("\n".join(rows), encoding="utf-8")
    assert holdfast("import", tmp_path / "steps.csv", "--run", "whole", "--gpus", "8").code == 0
    refused = holdfast("run", "--skip-lanes", "whole", script)
    assert complaint(refused) == "The run whole has skipped no lanes."
    assert "no run 'other'" in complaint(holdfast("run", "--skip-lanes", "other", script))


def test_a_home_that_cannot_be_written(holdfast: Any, script: Path, tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file", encoding="utf-8")
    assert "Cannot write" in complaint(holdfast("run", script))


def test_chaos_in_a_run_that_does_not_go(holdfast: Any) -> None:
    assert complaint(holdfast("chaos", "nobody", "kill")) == "No run 'nobody' is running on this machine."


def test_a_fault_that_is_none(holdfast: Any) -> None:
    assert "'flood'" in complaint(holdfast("chaos", "nobody", "flood"))


def test_the_interpreter_of_the_members_is_ours(holdfast: Any, tmp_path: Path) -> None:
    (tmp_path / "which.py").write_text("import sys; print(sys.executable)", encoding="utf-8")
    assert holdfast("run", "which.py").out == f"[n0.0] {sys.executable}\n"


# ---- what is checked before anything is started ----------------------------------------------------------

SIZE = """
[model]
layers = 4
hidden = 256
heads = 4
ffn = 1024
vocab = 256

[cluster]
chip = "h100"

[training]
sequence_tokens = 256
global_batch = 64
tokens = 1e9
lanes = 8
"""


@pytest.fixture
def size(tmp_path: Path) -> Path:
    path = tmp_path / "size.toml"
    path.write_text(SIZE, encoding="utf-8")
    return path


def warnings(done: Any) -> list[str]:
    """What was said before the run began."""
    assert done.code == 0, done.err
    before = done.err.partition("holdfast: run ")[0]
    return [line.removeprefix("holdfast: ") for line in before.splitlines()]


def test_a_size_that_fits_says_nothing(holdfast: Any, script: Path, size: Path) -> None:
    assert warnings(holdfast("run", "--size", size, "--nproc-per-node", "2", script)) == []


def test_lanes_that_nodes_cannot_share_evenly_are_warned_of_once(
    holdfast: Any, script: Path, size: Path
) -> None:
    uneven = holdfast("run", "--size", size, "--nproc-per-node", "3", script)
    assert warnings(uneven) == [
        "3 members share 8 lanes unevenly: a step takes the time of 3 lanes where 2.67 are the mean, "
        "89 % busy."
    ]
    after_loss = holdfast("run", "--size", size, "--nodes", "4", script)
    assert warnings(after_loss) == [f"With fewer nodes, {warnings(uneven)[0]}"]


@pytest.mark.parametrize(
    ("before", "after", "flags", "sentence"),
    [
        ("lanes = 8", "lanes = 2", "--nproc-per-node 3", "3 members cannot share 2 lanes: each needs one"),
        ("lanes = 8", "lanes = 6", "", "6 lanes are not a power of two"),
        ("lanes = 8", "", "", "does not say how the model is split over the GPUs."),
        ("lanes = 8", "lane = 8", "", "unknown field `lane`"),
        ('chip = "h100"', 'chip = "h100"\ngpus = 16', "", "is for 16 GPUs, and this run has 1."),
        ("hidden = 256", "hidden = 65536", "", "needs 1,749.5 to 2,332.7 GiB a GPU"),
        ("lanes = 8", "[layout]\ntp = 2\npp = 1", "--nproc-per-node 3", "TP 2 does not tile nodes of 3 GPUs"),
    ],
)
def test_a_size_that_cannot_work_is_refused_before_anything_is_started(
    holdfast: Any, script: Path, size: Path, before: str, after: str, flags: str, sentence: str
) -> None:
    assert before in SIZE
    size.write_text(SIZE.replace(before, after), encoding="utf-8")
    done = holdfast("run", "--size", size, *flags.split(), script)
    assert (done.code, done.out) == (2, "")
    assert sentence in done.err
    assert not (script.parent / "home" / "runs").exists()


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--prove-every", "0"), "must be above 0"),
        (("--prove-every", "6h", "--shard", "2", "--nproc-per-node", "2"), "of sharded models"),
        (("--prove-every", "6h", "--no-python"), "needs a Python script"),
        (("--checkpoint-rate", "500"), "is not a rate"),
        (("--checkpoint-rate", "0MB/s"), "is not a rate"),
        (("--checkpoint-rate", "1..5MB/s"), "is not a rate"),
    ],
)
def test_flags_of_checkpoints_are_checked_first(
    holdfast: Any, script: Path, flags: tuple[str, ...], sentence: str
) -> None:
    script.chmod(0o700)
    done = holdfast("run", *flags, script, CUDA_VISIBLE_DEVICES="")
    assert (done.code, done.out) == (2, ""), done
    assert sentence in " ".join(done.err.split()), done.err


def test_proofs_are_refused_where_members_have_the_gpus(holdfast: Any, script: Path) -> None:
    done = holdfast("run", "--prove-every", "6h", script, CUDA_VISIBLE_DEVICES="0")
    assert complaint(done).startswith("--prove-every needs a GPU that no member uses")


def test_a_run_is_refused_with_the_sentence_of_plan_size(holdfast: Any, script: Path, size: Path) -> None:
    size.write_text(SIZE.replace("hidden = 256", "hidden = 65536"), encoding="utf-8")
    planned = holdfast("plan", "size", size, "--gpus", "1", "--gpus-per-node", "1")
    assert complaint(holdfast("run", "--size", size, script)) == complaint(planned)


def test_a_layout_that_the_fewest_nodes_cannot_hold_is_warned_of(
    holdfast: Any, script: Path, size: Path
) -> None:
    size.write_text(SIZE.replace("lanes = 8", "[layout]\ntp = 1\npp = 2"), encoding="utf-8")
    (told,) = warnings(holdfast("run", "--size", size, "--nodes", "4", script))
    assert told.startswith(
        "With 1 of 4 nodes it cannot go on: TP 1 x PP 2 x CP 1 x DP 1 = 2 are not the 1 GPUs"
    )


def test_more_threads_than_cpus_are_warned_of(holdfast: Any, script: Path) -> None:
    cpus = len(os.sched_getaffinity(0))
    done = holdfast("run", "--nproc-per-node", "2", script, OMP_NUM_THREADS=str(cpus))
    assert warnings(done) == [f"OMP_NUM_THREADS={cpus} makes {2 * cpus} threads of 2 members on {cpus} CPUs."]
    assert warnings(holdfast("run", "--nproc-per-node", "2", script, OMP_NUM_THREADS="1")) == []


def test_checking_the_size_needs_no_numerical_library(
    environment: dict[str, str], script: Path, size: Path, tmp_path: Path
) -> None:
    def loaded(*flags: str | Path) -> set[str]:
        done = subprocess.run(
            [sys.executable, "-X", "importtime", "-m", "holdfast", "run", *flags, script],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=True,
        )
        return {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if "|" in line}

    with_size, without = loaded("--size", size), loaded()
    assert "holdfast.economics.sizing.sizing" in with_size - without
    assert not {"numpy", "scipy", "rich"} & with_size


@pytest.mark.parametrize("flag", ["--wait", "--hang-after", "--audit"])
@pytest.mark.parametrize("number", ["nan", "inf"])
def test_a_number_must_be_finite(holdfast: Any, script: Path, flag: str, number: str) -> None:
    assert flag in complaint(holdfast("run", flag, number, script))
