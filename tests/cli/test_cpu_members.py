"""A run whose members have no GPU is not one of GPUs, and has no price unless one is given."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from holdfast.record.events import (
    FaultObserved,
    GenerationOpened,
    KnownEvent,
    MemberJoined,
    RunEnded,
    RunStarted,
    StepCommitted,
    encode,
)
from holdfast.wording.units import HOUR_NS, SECOND_NS

Holdfast = Callable[..., Any]
START_NS = 1_760_000_000 * SECOND_NS
MEMBERS = ("n0.0", "n0.1")


def record(holdfast: Holdfast, tmp_path: Path, run: str, device: str) -> None:
    """Two members, of which one is slow from the middle on, for a minute of steps."""
    events: list[KnownEvent] = [RunStarted(id="", occurred_ns=START_NS, run=run, gpus=2)]
    events += [MemberJoined(id="", occurred_ns=START_NS, run=run, subject=name) for name in MEMBERS]
    events.append(
        GenerationOpened(
            id="", occurred_ns=START_NS, run=run, generation=1, members=MEMBERS, step=0, device=device
        )
    )
    moments_s = [*range(1, 31), *range(33, 63, 2)]
    events += [
        StepCommitted(id="", occurred_ns=START_NS + at_s * SECOND_NS, run=run, step=step)
        for step, at_s in enumerate(moments_s, 1)
    ]
    slow_ns = START_NS + 40 * SECOND_NS
    events.append(
        FaultObserved(
            id="",
            occurred_ns=slow_ns,
            run=run,
            subject="n0.1",
            fault="slow member",
            severity="degraded",
            onset_ns=START_NS + 31 * SECOND_NS,
        )
    )
    events.append(RunEnded(id="", occurred_ns=START_NS + 63 * SECOND_NS, run=run, outcome="completed"))
    events.sort(key=lambda event: event.occurred_ns)
    path = tmp_path / f"{run}.jsonl"
    path.write_bytes(
        b"".join(
            encode(type(one)(**{**_fields(one), "id": f"{run}-{n}"})) + b"\n" for n, one in enumerate(events)
        )
    )
    assert holdfast("import", path).code == 0


def attempts(holdfast: Holdfast, tmp_path: Path, *devices: str) -> None:
    """A run called `mixed` with an attempt of two members for an hour on each of these devices."""
    path = tmp_path / "mixed.jsonl"
    with path.open("wb") as file:
        for number, device in enumerate(devices):
            began_ns, ended_ns = START_NS + 2 * number * HOUR_NS, START_NS + (2 * number + 1) * HOUR_NS
            opened = GenerationOpened(
                id=f"g{number}", occurred_ns=began_ns, run="mixed", members=MEMBERS, device=device
            )
            for event in (
                RunStarted(id=f"s{number}", occurred_ns=began_ns, run="mixed", gpus=2),
                opened,
                StepCommitted(id=f"c{number}", occurred_ns=ended_ns, run="mixed", step=number + 1),
                RunEnded(id=f"e{number}", occurred_ns=ended_ns, run="mixed", outcome="stopped"),
            ):
                file.write(encode(event) + b"\n")
    assert holdfast("import", path).code == 0


def _fields(event: KnownEvent) -> dict[str, Any]:
    return {name: getattr(event, name) for name in event.__struct_fields__}


def test_members_without_a_gpu_are_neither_counted_nor_priced_as_gpus(
    holdfast: Holdfast, tmp_path: Path
) -> None:
    record(holdfast, tmp_path, "small", "cpu")
    report = holdfast("report", "small")
    assert report.code == 0
    assert "2 CPU members" in report.out
    assert "CPU member-hours paid for were useful" in report.out
    assert "GPU" not in report.out.partition("Reference")[0]
    page = tmp_path / "page.html"
    assert holdfast("report", "small", "--html", page).code == 0
    assert "no price of their hours is given" in page.read_text()
    assert "2 CPU members" in page.read_text()
    assert "USD" not in page.read_text()
    for words in (("cost", "small"), ("finance",)):
        refused = holdfast(*words)
        assert refused.code == 2
        assert "The members of small have no GPU, so its hours have no price." in refused.err
        assert 'chip = "cpu"' in refused.err
    (row,) = holdfast("runs", "--json").json
    assert (row["on_cpu"], row["cost_usd"]) == (True, None)
    assert "3.99" not in holdfast("runs").out


def test_a_price_for_them_is_a_rate_of_their_own(holdfast: Holdfast, tmp_path: Path) -> None:
    record(holdfast, tmp_path, "small", "cpu")
    prices = tmp_path / "prices.toml"
    prices.write_text('[[rates]]\nper_gpu_hour = 2.0\n[[rates]]\nchip = "cpu"\nper_gpu_hour = 36.0\n')
    told = holdfast("finance", "--prices", prices, "--json").json
    assert told["spend"]["usd"] == pytest.approx(2 * 63 / 3_600 * 36)
    prices.write_text("usd_per_gpu_hour = 2.0\n[[rates]]\nper_gpu_hour = 2.0\n")
    assert holdfast("finance", "--prices", prices).code == 2  # those are prices of GPUs


def test_runs_of_gpus_are_told_without_them(holdfast: Holdfast, tmp_path: Path) -> None:
    record(holdfast, tmp_path, "small", "cpu")
    record(holdfast, tmp_path, "large", "NVIDIA H200")
    done = holdfast("finance")
    assert "1 run of members without a GPU is left out" in " ".join(done.out.split())
    told = holdfast("finance", "--json").json
    assert told["spend"]["gpu_ns"] == 2 * 63 * SECOND_NS


@pytest.mark.parametrize("devices", [("NVIDIA H200", "cpu"), ("cpu", "NVIDIA H200")])
def test_an_attempt_on_cpus_takes_no_price_from_the_hours_of_gpus(
    holdfast: Holdfast, tmp_path: Path, devices: tuple[str, ...]
) -> None:
    attempts(holdfast, tmp_path, *devices)
    told = "had GPUs in some attempts and only CPUs in others"
    report = holdfast("report", "mixed")
    assert "2 GPUs" in report.out
    assert told in " ".join(report.out.split())
    assert told in " ".join(holdfast("cost", "mixed").out.split())
    finance = holdfast("finance", "--json").json
    assert finance["spend"]["gpu_ns"] == 4 * HOUR_NS
    assert finance["spend"]["usd"] == pytest.approx(4 * 3.99)
    assert any(told in remark for remark in finance["remarks"])
    prices = tmp_path / "prices.toml"
    on_cpus = START_NS + 2 * devices.index("cpu") * HOUR_NS
    between = "\n".join(
        f'{word} = "{datetime.fromtimestamp(at_ns // SECOND_NS, tz=UTC).isoformat()}"'
        for word, at_ns in (("from", on_cpus), ("to", on_cpus + HOUR_NS))
    )
    prices.write_text(f'usd_per_gpu_hour = 2.0\n[[rates]]\nrun = "mixed"\nper_gpu_hour = 0.5\n{between}\n')
    assert holdfast("finance", "--prices", prices, "--json").json["spend"]["usd"] == pytest.approx(5.0)


def test_an_incident_counts_their_hours_and_prices_them_only_by_a_rate(
    holdfast: Holdfast, tmp_path: Path
) -> None:
    record(holdfast, tmp_path, "small", "cpu")
    at = datetime.fromtimestamp(START_NS // SECOND_NS + 62, tz=UTC).isoformat()
    told = " ".join(holdfast("diagnose", "small", "--at", at).out.split())
    assert "CPU member-hours so far" in told
    assert "No price of these hours is given." in told
    assert "USD" not in told
    assert "GPU-h" not in told
    prices = tmp_path / "prices.toml"
    prices.write_text('[[rates]]\nper_gpu_hour = 2.0\n[[rates]]\nchip = "cpu"\nper_gpu_hour = 36.0\n')
    done = holdfast("diagnose", "small", "--at", at, "--prices", prices, "--json").json
    cost = done["incidents"][0]["cost"]
    assert cost["usd_per_hour"] == pytest.approx(36 * cost["gpu_hours_per_hour"])


def test_a_cause_that_is_named_is_not_to_be_found_first(holdfast: Holdfast, tmp_path: Path) -> None:
    record(holdfast, tmp_path, "large", "NVIDIA H200")
    told = " ".join(holdfast("finance").out.split())
    assert "Mend what the record names: slow member (n0.1)." in told
    assert "Find the member" not in told
