"""`make demo`: the same training twice, once with faults and once without, and the proof that the weights are
equal.

    python examples/char_gpt/demo.py DIRECTORY [ARGUMENTS OF train.py]

Everything is written to the directory: the record of both runs, their weights, and the report as a web page.
"""

import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch

HERE = Path(__file__).parent


def main(home: Path, arguments: list[str]) -> int:
    if home.exists():
        sys.exit(f"{home} is there already; the demo wants a directory of its own.")
    home.mkdir(parents=True)
    # Both are set: the demo must not use a store that the caller has exported.
    os.environ |= {"HOLDFAST_HOME": str(home), "HOLDFAST_STORE": str(home / "record.sqlite")}

    say("Train on 2 nodes with 2 members each. A member will be killed, and a node lost for 2 seconds.")
    faults = ("--chaos", HERE / "faults.toml")
    disturbed = train(home, "disturbed", ("--nodes", 2, "--nproc-per-node", 2, *faults), arguments)

    say("Train again, with 2 members and without faults.")
    undisturbed = train(home, "undisturbed", ("--nproc-per-node", 2, "--warm", 0), arguments)

    say("Compare the weights.")
    print(f"  disturbed    {disturbed}\n  undisturbed  {undisturbed}", file=sys.stderr)
    if disturbed != undisturbed:
        say("They differ, which must never happen. Please report it.", "31")
        return 1
    say("They are the same, bit by bit.", "32")

    say("Where the time of the disturbed run went:")
    holdfast("report", "disturbed")
    holdfast("report", "disturbed", "--html", home / "report.html")
    return 0


def train(home: Path, run: str, flags: tuple[object, ...], arguments: list[str]) -> str:
    """The digest of the weights at the end of the run."""
    weights = home / f"{run}.pt"
    began = time.monotonic()
    holdfast("run", "--live", "--run", run, *flags, HERE / "train.py", "--out", weights, *arguments)
    print(f"  took {time.monotonic() - began:.0f} s", file=sys.stderr)
    digest = hashlib.sha256()
    for name, tensor in sorted(torch.load(weights).items()):
        digest.update(name.encode() + tensor.numpy().tobytes())
    return digest.hexdigest()


def holdfast(*words: object) -> None:
    done = subprocess.run([sys.executable, "-m", "holdfast", *map(str, words)], check=False)
    if done.returncode:
        sys.exit(done.returncode)


def say(text: str, colour: str = "1") -> None:
    styled = sys.stderr.isatty() and "NO_COLOR" not in os.environ
    print(f"\n\x1b[{colour}m{text}\x1b[0m" if styled else f"\n{text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    # Ctrl-C reaches the process that runs at the moment, which ends in good order; then this one ends, too.
    signal.signal(signal.SIGINT, lambda _number, _frame: None)
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
