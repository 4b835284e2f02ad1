"""Asks the product as a user would, through its command line."""

import json
import os
import tempfile
import time
import zlib
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from click.testing import CliRunner

from bench.exam.plan import RUN, Case, Cause, Level
from bench.exam.plant import Plant
from bench.exam.site import Site, stamp
from holdfast.cli.diagnose import command

MARGIN_S = 60.0
HEALTHY_S = 4 * 3_600.0
HEALTHY_EVERY_S = 1_800.0
HANG_AT_S = (15.0, 30.0, 45.0, 60.0, 90.0, 120.0, 180.0, 300.0)
SPAN_S = 300.0


class Incident(msgspec.Struct, frozen=True, kw_only=True):
    """What is marked of an incident."""

    verdict: str
    mechanism: str = ""
    subject: str = ""
    confidence: float = 0.0
    slowdown: float | None = None
    began_s: float | None = None
    ended: bool = False
    owner: str = ""
    affected: tuple[str, ...] = ()

    @property
    def named(self) -> bool:
        """Whether it names a cause, and does not just say that something is slow."""
        return self.verdict != "unknown" and self.mechanism not in ("", "unknown") and bool(self.subject)


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """One question and what came back. after_s: since the onset. truth: how slow the run really was."""

    case: str
    kind: str
    seed: int
    level: Level
    after_s: float
    healthy: bool
    causes: tuple[Cause, ...]
    tolerated: tuple[str, ...]
    truth_now: float
    truth_since: float
    incidents: tuple[Incident, ...]
    sees_run: bool
    flaws: int
    took_s: float
    error: str = ""


def sit(case: Case, seed: int, levels: tuple[Level, ...], afters_s: tuple[float, ...]) -> list[Answer]:
    """Build a case and ask all questions about it."""
    tail_s = HEALTHY_S if case.healthy else max(afters_s) + MARGIN_S
    plant, causes = build(case, seed, tail_s)
    usual_s = healthy_step_s(case, seed, plant)
    is_hang = any(cause.hang for cause in causes)
    origin_s = plant.stop_s if is_hang and plant.stop_s is not None else plant.onset_s
    if case.healthy:
        moments = list(np.arange(HEALTHY_EVERY_S, HEALTHY_S - 1, HEALTHY_EVERY_S).tolist())
        origin_s = 0.0
    else:
        moments = sorted({*afters_s, *(HANG_AT_S if is_hang else ())})
    answers = []
    with tempfile.TemporaryDirectory(prefix="exam-") as folder:
        site = Site(plant, Path(folder), usual_s)
        for after_s in moments:
            at_s = origin_s + after_s
            site.tell(at_s)
            now, since = truth(plant, usual_s, at_s, origin_s)
            for level in levels:
                begun = time.monotonic()
                document, error = ask(site, level, at_s)
                answers.append(
                    Answer(
                        case=case.name,
                        kind=case.kind,
                        seed=seed,
                        level=level,
                        after_s=after_s,
                        healthy=case.healthy,
                        causes=tuple(causes),
                        tolerated=case.tolerated,
                        truth_now=now,
                        truth_since=since,
                        incidents=tuple(
                            _incident(one, site.begin_ns) for one in document.get("incidents", [])
                        ),
                        sees_run=bool(document.get("quality", {}).get("sees_run")),
                        flaws=len(document.get("quality", {}).get("flaws", [])),
                        took_s=time.monotonic() - begun,
                        error=error,
                    )
                )
    return answers


def build(case: Case, seed: int, tail_s: float) -> tuple[Plant, list[Cause]]:
    plant = Plant(case.spec, _generator(case, seed), onset=case.onset, tail_s=tail_s)
    causes = case.inject(plant)
    plant.solve()
    return plant, causes


def healthy_step_s(case: Case, seed: int, plant: Plant) -> float:
    """The step's time with nothing wrong: measured before the onset, else on the same plant left alone."""
    if plant.onset_s > 600 and not case.healthy:
        return plant.step_mean_with_saves_s(0.0, plant.onset_s)
    alone = Plant(case.spec, _generator(case, seed), onset=case.onset, tail_s=600.0)
    alone.solve()
    return alone.step_mean_with_saves_s(0.0, 600.0)


def truth(plant: Plant, usual_s: float, at_s: float, origin_s: float) -> tuple[float, float]:
    """How slow the run was in the last minutes, and on average since the onset."""
    now = plant.step_mean_with_saves_s(at_s - SPAN_S, at_s) / usual_s
    since = plant.step_mean_with_saves_s(max(origin_s, at_s - 1_800.0), at_s) / usual_s
    return float(np.nan_to_num(now)), float(np.nan_to_num(since))


def _generator(case: Case, seed: int) -> np.random.Generator:
    return np.random.default_rng([seed, zlib.crc32(case.name.encode())])


def ask(site: Site, level: Level, at_s: float) -> tuple[dict[str, Any], str]:
    """Run `holdfast diagnose RUN --json ...`: the answer, or why there is none."""
    arguments = [RUN, "--json", "--at", stamp(site.at_ns(at_s)), "--signals", str(site.signals[level])]
    arguments += ["--topology", str(site.topology), "--store", str(site.record)]
    environment = {"HOLDFAST_HOME": str(site.home), "HOLDFAST_PROMETHEUS": None, "NO_COLOR": "1"}
    outcome = CliRunner().invoke(command, arguments, env=environment)
    if outcome.exception is not None and not isinstance(outcome.exception, SystemExit):
        return {}, f"{type(outcome.exception).__name__}: {outcome.exception}"
    try:
        return json.loads(outcome.stdout), ""
    except json.JSONDecodeError:
        return {}, (outcome.stderr or outcome.stdout)[-300:]


def _incident(one: dict[str, Any], begin_ns: int) -> Incident:
    cause = one.get("cause") or {}
    began_ns = one.get("began_ns")
    return Incident(
        verdict=one.get("verdict", ""),
        mechanism=cause.get("mechanism") or "",
        subject=cause.get("subject") or "",
        confidence=float(one.get("confidence") or 0.0),
        slowdown=one.get("slowdown"),
        began_s=None if began_ns is None else (began_ns - begin_ns) / 1e9,
        ended=one.get("ended_ns") is not None,
        owner=one.get("owner") or "",
        affected=tuple(str(who) for who in one.get("affected") or ())[:64],
    )


def quiet_environment() -> None:
    """One thread each, so that figures do not depend on what else the machine does."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(name, "1")
