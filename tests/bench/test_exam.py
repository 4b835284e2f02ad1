"""The exam's own honesty: its files read as the store's do, its physics holds, its marking can fail."""

import ast
from functools import cache
from pathlib import Path

import msgspec
import numpy as np
import pytest

from bench.exam import asking, cases, exporters, faults, marking
from bench.exam.asking import Answer, Incident
from bench.exam.plan import LEVELS, RUN, Case, Cause, Inject, Level, Spec
from bench.exam.scrapes import Samples, Scrape
from holdfast.signals.frame import Reading
from holdfast.signals.store import SignalStore

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
TINY = Spec(nodes=4, member_per="node", scrape_s=(30.0, 30.0, 15.0))
FORBIDDEN = ("holdfast.detect", "holdfast.diagnose", "holdfast.drills", "holdfast.twin")
BEGIN_NS = 1_772_611_200 * 10**9


def _case(inject: Inject, spec: Spec = TINY) -> Case:
    return Case(name="tiny/case", spec=spec, inject=inject)


@cache
def _causes() -> tuple[Cause, ...]:
    return tuple(asking.build(_case(faults.gpu_throttle()), 1, 60.0)[1])


def _answer(incident: Incident, *, level: Level = "full", truth: float = 1.2) -> Answer:
    return Answer(
        case="tiny/case",
        kind="tiny",
        seed=1,
        level=level,
        after_s=600.0,
        healthy=False,
        causes=_causes(),
        tolerated=(),
        truth_now=truth,
        truth_since=truth,
        incidents=(incident,),
        sees_run=True,
        flaws=0,
        took_s=0.0,
    )


def test_files_read_as_if_the_store_had_written_them(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    scrape = Scrape(rng, 2, 10.0, 400.0)
    labels = [{"hostname": "n0", "gpu": "1"}, {"hostname": "n1", "gpu": "1"}]
    values = rng.normal(60, 3, scrape.times_s.shape)
    samples = Samples(BEGIN_NS, np.arange(0.0, 400.0, 10.0))
    samples.gauge("default", "DCGM_FI_DEV_GPU_TEMP", scrape, [0, 1], labels, values)
    ours = samples.write(tmp_path)["full"]
    readings = [
        Reading(
            metric="DCGM_FI_DEV_GPU_TEMP",
            labels=labels[target],
            at_ns=BEGIN_NS + round(float(scrape.times_s[row, target]) * 1e9),
            value=float(values[row, target]),
        )
        for row in range(len(values))
        for target in range(2)
        if scrape.ok[row, target]
    ]
    window_ns = (BEGIN_NS + 10**9, BEGIN_NS + 350 * 10**9)
    with SignalStore(tmp_path / "theirs") as store, SignalStore(ours) as mine:
        store.append(readings)
        expected, found = (
            store.frame("DCGM_FI_DEV_GPU_TEMP", window_ns),
            mine.frame("DCGM_FI_DEV_GPU_TEMP", window_ns),
        )
    assert expected is not None
    assert found is not None
    assert found.subjects == expected.subjects
    assert found.labels == expected.labels
    np.testing.assert_array_equal(found.values, expected.values)


def test_a_poorer_level_has_only_what_is_on_by_default(tmp_path: Path) -> None:
    plant, _ = asking.build(_case(faults.nothing()), 1, 300.0)
    places = exporters.show(plant, BEGIN_NS).write(tmp_path)
    seen = {}
    for level in LEVELS:
        with SignalStore(places[level]) as store:
            seen[level] = set(store.metrics())
    assert seen["step"] == {"holdfast_run_step_seconds", "holdfast_run_steps_total"}
    assert seen["step"] < seen["default"] < seen["full"]
    assert "DCGM_FI_DEV_SM_CLOCK" in seen["default"]
    assert not {"DCGM_FI_DEV_POWER_VIOLATION", "holdfast_member_compute_seconds"} & seen["default"]


def test_a_healthy_gpu_is_at_its_power_limit_and_cooler_than_the_point_of_slowing() -> None:
    plant, _ = asking.build(_case(faults.nothing()), 1, 300.0)
    assert plant.capped.mean() > 0.9
    assert plant.hot.max() == 0
    assert 20 < plant.clock[-1].std() < 80


def test_the_slowest_link_sets_the_pace_for_all() -> None:
    plant, _ = asking.build(_case(faults.link_errors(0.5)), 1, 600.0)
    slower = plant.step_mean_s(plant.onset_s, plant.t[-1]) / plant.step_mean_s(0, plant.onset_s)
    assert slower == pytest.approx(1 + 0.66 * 0.18, abs=0.02)


def test_every_case_says_what_it_accepts_and_why() -> None:
    names = [case.name for case in cases.CASES]
    assert len(names) == len(set(names))
    assert len(cases.TROUBLE) >= 60
    assert len({case.kind for case in cases.TROUBLE}) >= 25
    assert len(cases.HEALTHY) >= 12
    assert 12 <= sum(case.quick for case in cases.CASES) <= 18


def test_marking_tells_right_from_wrong_and_wrong_from_unknown() -> None:
    (cause,) = _answer(Incident(verdict="unknown")).causes
    mechanism, subject = cause.accepted["full"][0]
    right = marking.mark(
        _answer(Incident(verdict="cause", mechanism=mechanism, subject=subject, confidence=0.9))
    )
    wrong = marking.mark(
        _answer(Incident(verdict="cause", mechanism=mechanism, subject="n000.0", confidence=0.9))
    )
    unknown = marking.mark(
        _answer(Incident(verdict="unknown", mechanism="unknown", subject=RUN, confidence=0.9))
    )
    assert marking.figures([right]).recall == marking.figures([right]).precision == 1.0
    assert marking.figures([wrong]).recall == marking.figures([wrong]).precision == 0.0
    assert marking.figures([wrong]).sure_wrong == 1
    assert marking.figures([unknown]).recall == 0.0
    assert marking.figures([unknown]).precision is None


def test_what_cannot_be_told_is_not_asked_for() -> None:
    said = Incident(verdict="unknown", mechanism="unknown", subject=RUN)
    assert marking.mark(_answer(said, level="step")).due == ()
    assert marking.mark(_answer(said, truth=1.01)).due == ()
    assert marking.mark(_answer(said, level="step")).unknown


def test_an_alarm_on_healthy_hours_counts_once_while_it_lasts() -> None:
    said = Incident(verdict="cause", mechanism="gpu-fault", subject="n000.0", confidence=0.4)
    answers = [
        msgspec.structs.replace(_answer(said), healthy=True, causes=(), after_s=after_s)
        for after_s in (1_800.0, 3_600.0)
    ]
    alarms, days, _ = marking.false_alarms([marking.mark(answer) for answer in answers], "full")
    assert alarms == 1
    assert days == pytest.approx(3_600 / 86_400)


def test_nothing_of_the_exam_knows_the_detectors() -> None:
    for path in sorted((ROOT / "bench" / "exam").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert not [name for name in names if name.startswith(FORBIDDEN)], path


def test_the_product_is_asked_as_a_user_asks_it() -> None:
    (answer,) = asking.sit(_case(faults.gpu_throttle()), 1, ("full",), (600.0,))
    assert answer.error == ""
    assert answer.sees_run
