"""The nanoGPT port under real faults: whether it goes on, after how long, and with which bits.

    python testbed/survival.py                              # all faults, five times each: half an hour
    python testbed/survival.py --only kill-lane --only gil --repetitions 1
    python testbed/survival.py --write docs/run.md          # puts the table between the page's markers

Every fault has runs of its own, of a few seconds. Seconds are from the fault to the next step that all
members have committed, by the run's record. Exits with 1 if a run did not end as it should.
"""

import argparse
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
from port_faults import FAULTS, Fault
from port_run import BRIEF, ROOT, USUAL, Ended, Late, Line, PortRun, Scale, next_commit_s, prepare

from holdfast.run.ending import CODE_UNSAVED

THROUGH = (0, CODE_UNSAVED)
"""The exit codes of a run whose training is complete."""
REPETITIONS = 5
SAID_BEFORE_S = 0.2
"""Holdfast may speak before the harness has noted the fault."""
SAID_AFTER_S = 0.3
SAID_CHARS_MAX = 200
SAID_LINES_MAX = 3
BEGIN, END = "<!-- faults -->", "<!-- /faults -->"


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One fault, once. code: of `holdfast run`; None where it did not end in time. said: the lines in
    which Holdfast tells what it did about it.
    """

    is_as_meant: bool
    code: int | None
    next_commit_s: float | None
    same_bits: bool | None
    said: str


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One fault, so many times. next_commit_s: the median."""

    name: str
    what: str
    ends: bool
    samples: tuple[Sample, ...]

    @property
    def is_as_meant(self) -> bool:
        return all(sample.is_as_meant for sample in self.samples)

    @property
    def next_commit_s(self) -> float | None:
        known = [one.next_commit_s for one in self.samples if one.next_commit_s is not None]
        return statistics.median(known) if known else None


def measure(faults: Sequence[Fault], repetitions: int, scale: Scale, folder: Path) -> list[Row]:
    """Everything in turn, so that a busy hour of the machine does not fall on one fault."""
    prepare(folder)
    digests: dict[str, str] = {}
    samples: dict[str, list[Sample]] = {fault.name: [] for fault in faults}
    for number in range(repetitions):
        for fault in faults:
            key = str(fault.settings)
            if key not in digests:
                calm = _folder(folder, f"undisturbed-{len(digests)}")
                digests[key] = undisturbed(calm, scale, fault.settings)
            began_s = time.monotonic()
            sample = sampled(fault, scale, _folder(folder, f"{fault.name}-{number}"), digests[key])
            samples[fault.name].append(sample)
            _tell(f"{fault.name}, {number + 1} of {repetitions}: {_outcome(sample, fault.ends)}")
            _tell(
                f"  next commit {_seconds(sample.next_commit_s)}, in all {time.monotonic() - began_s:.0f} s"
            )
            for line in sample.said.splitlines():
                _tell(f"  {line}")
    return [
        Row(name=fault.name, what=fault.what, ends=fault.ends, samples=tuple(samples[fault.name]))
        for fault in faults
    ]


def undisturbed(folder: Path, scale: Scale, settings: dict[str, object]) -> str:
    """The digest that every run should end with: that of a single member."""
    with PortRun(folder, scale, ("--nproc-per-node", 1, "--warm", 0), settings=settings) as run:
        ended = run.ended()
    if ended.code or not ended.digest:
        raise SystemExit(f"The undisturbed run failed:\n{ended.output}")
    return ended.digest


def sampled(fault: Fault, scale: Scale, folder: Path, digest: str) -> Sample:
    try:
        played = fault.play(folder, scale)
    except Late as late:
        _tell(f"{fault.name}: {late}")
        return Sample(is_as_meant=False, code=None, next_commit_s=None, same_bits=None, said="")
    ended = played.ended
    is_through = ended.code in THROUGH
    same_bits = ended.digest == digest if is_through else None
    took_s = next_commit_s(ended.events, played.onset_ns) if is_through else None
    is_as_meant = not is_through if fault.ends else is_through and same_bits is True
    said = essential(ended, played.onset_ns, took_s).replace(f"{folder}/", "").replace(f"{ROOT}/", "")
    return Sample(
        is_as_meant=is_as_meant, code=ended.code, next_commit_s=took_s, same_bits=same_bits, said=said
    )


def essential(ended: Ended, onset_ns: int, took_s: float | None) -> str:
    """What a user reads about it, a line each. Chosen by when it was printed, not by words: those may change.

    Of a run that failed, from the line that says so, or the last. Of one that went on, the last lines until
    it did.
    """
    since = [line for line in ended.said if line.at_ns >= onset_ns - SAID_BEFORE_S * 1e9]
    lines = [line for line in since if "`holdfast " not in line.text]
    if ended.code not in THROUGH:
        failed = [line for line in lines if "the run fails" in line.text]
        failed = failed or [line for line in lines if re.search(r"\bfail", line.text)]
        return _short(failed[-1:] or lines[-1:])
    until_ns = onset_ns + (SAID_AFTER_S + (took_s or 0.0)) * 1e9
    lines = [line for line in lines if line.at_ns <= until_ns and not re.search("[0-9a-f]{64}", line.text)]
    return _short([line for line in lines if "strikes" not in line.text][-SAID_LINES_MAX:])


def _short(lines: Sequence[Line]) -> str:
    texts = [line.text.removeprefix("holdfast: ") for line in lines]
    return "\n".join(t if len(t) <= SAID_CHARS_MAX else t[: SAID_CHARS_MAX - 1] + "…" for t in texts)


def table(rows: Sequence[Row]) -> str:
    """For people, in Markdown."""
    lines = [
        "| fault | outcome | next commit of all | same bits | what is printed |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        bits = {sample.same_bits for sample in row.samples} - {None}
        same = "-" if not bits else "yes" if bits == {True} else "no"
        shown = min(row.samples, key=lambda one: abs((one.next_commit_s or 0) - (row.next_commit_s or 0)))
        plain = shown.said.replace("|", "/").replace("`", "'")
        said = "<br>".join(f"`{line}`" for line in plain.splitlines()) or "nothing"
        seconds = _seconds(row.next_commit_s)
        lines.append(f"| {row.what} | {_outcomes(row)} | {seconds} | {same} | {said} |")
    return "\n".join(lines)


def _outcomes(row: Row) -> str:
    words = [_outcome(sample, row.ends) for sample in row.samples]
    if len(set(words)) == 1:
        return words[0]
    return ", ".join(f"{word} {words.count(word)} of {len(words)}" for word in dict.fromkeys(words))


def _outcome(sample: Sample, ends: bool) -> str:
    if sample.code is None:
        return "**hangs**"
    if sample.code in THROUGH:
        goes_on = f"goes on, exit {sample.code}" if sample.code else "goes on"
        return "**not noticed**" if ends else goes_on if sample.same_bits else "**other bits**"
    word = f"fails, exit {sample.code}"
    return word if ends else f"**{word}**"


def _seconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.2f} s"


def written(page: str, rows: Sequence[Row], repetitions: int) -> str:
    """The page with the table between its markers."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"The page has no place for the table: {BEGIN} and {END}.")
    times = "once" if repetitions == 1 else f"{repetitions} times; seconds are medians"
    return f"{before}{begin}\nEach fault was made {times}.\n\n{table(rows)}\n{end}{after}"


def _folder(parent: Path, name: str) -> Path:
    """A new one, with the data in it."""
    folder = parent / name
    folder.mkdir()
    (folder / "data").symlink_to(parent / "data")
    return folder


def _tell(text: str) -> None:
    print(f"faults: {text}", file=sys.stderr, flush=True)


def _chosen(names: Sequence[str]) -> list[Fault]:
    known = {fault.name: fault for fault in FAULTS}
    if unknown := set(names) - known.keys():
        raise SystemExit(f"There is no fault {unknown.pop()}; there are {', '.join(known)}.")
    chosen = [fault for name, fault in known.items() if name in (names or known)]
    for fault in chosen:
        if not fault.is_possible:
            _tell(f"{fault.name} is left out: `holdfast run` has no {fault.needs}.")
    return [fault for fault in chosen if fault.is_possible]


def main() -> int:
    parser = argparse.ArgumentParser(description="Put the nanoGPT port through faults, and see what it does.")
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="this fault; may be repeated"
    )
    parser.add_argument("--repetitions", type=int, default=REPETITIONS, metavar="N")
    parser.add_argument("--brief", action="store_true", help="shorter runs of two members, for a quick look")
    parser.add_argument("--json", action="store_true", help="print every sample")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the table into this page")
    given = parser.parse_args()
    scale = BRIEF if given.brief else USUAL
    with tempfile.TemporaryDirectory(prefix="holdfast-faults-") as folder:
        rows = measure(_chosen(given.only), given.repetitions, scale, Path(folder))
    if given.json:
        print(msgspec.json.format(msgspec.json.encode(rows)).decode())
    else:
        print(table(rows))
    if given.write:
        page = given.write.read_text(encoding="utf-8")
        given.write.write_text(written(page, rows, given.repetitions), encoding="utf-8")
    return 0 if all(row.is_as_meant for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
