"""The lead by a Lease, against a server that loses answers, is away and is asked by many at once. On a real
API server: test_lease_server.py.
"""

from random import Random
from typing import Any

import msgspec
import pytest
from quantity import sampled

from holdfast.record.errors import HoldfastError
from holdfast.schedulers.kubernetes_api import KubeRefusal
from holdfast.schedulers.kubernetes_lease import LEASE_S, RENEW_S, LeaseLead, LeaseTimes
from holdfast.schedulers.kubernetes_objects import KubeLease

LEASE = "holdfast/holdfast-control"
DRIFT = 0.01
"""By which clocks run apart."""
SEEDS = 40


class FakeServer:
    """One Lease, with the versions of a real server. A reader reaches it through a `Line` of its own."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = {"metadata": {"resourceVersion": "1"}, "spec": {}}
        self.version = 1

    def replace(self, made: Any) -> None:
        if self.lease is None:
            raise KubeRefusal(404, "not found")
        if made["metadata"]["resourceVersion"] != self.lease["metadata"]["resourceVersion"]:
            raise KubeRefusal(409, "the object has been modified")
        self.version += 1
        self.lease = {**made, "metadata": {**made["metadata"], "resourceVersion": str(self.version)}}

    @property
    def holder(self) -> str:
        return self.lease["spec"].get("holderIdentity", "") if self.lease else ""


class Line:
    """The way of one process to the server, which may be cut before or behind it."""

    def __init__(self, server: FakeServer, random: Random) -> None:
        self.server, self.random = server, random
        self.is_cut = False
        self.trouble = 0.0
        self.between: list[Any] = []
        """What others do after the next read, and before the write."""

    def get(self, path: str, kind: type[KubeLease]) -> KubeLease:
        self._fail()
        if self.server.lease is None:
            raise KubeRefusal(404, "not found")
        found = msgspec.convert(self.server.lease, kind)
        while self.between:
            self.between.pop()()
        return found

    def replace(self, path: str, made: object) -> None:
        self._fail()
        self.server.replace(made)
        self._fail()  # it was written, and nobody hears of it

    def close(self) -> None: ...

    def _fail(self) -> None:
        if self.is_cut or self.random.random() < self.trouble:
            raise HoldfastError("The server does not answer.")


class Process:
    """A candidate with a clock of its own."""

    def __init__(
        self, name: str, server: FakeServer, random: Random, times: LeaseTimes | None = None
    ) -> None:
        self.true_s = 0.0
        self.rate, self.began_s = random.uniform(1 - DRIFT, 1 + DRIFT), random.uniform(0, 1e6)
        self.line = Line(server, random)
        self.lead = LeaseLead(
            self.line, LEASE, name, times=times, now_s=lambda: self.began_s + self.rate * self.true_s
        )

    @property
    def believes(self) -> bool:
        """That it leads, without asking anybody."""
        was, self.line.is_cut = self.line.is_cut, True
        try:
            return self.lead.is_ours()
        finally:
            self.line.is_cut = was


def played(seed: int, times: LeaseTimes) -> int:
    """How often the lead went from one to another, while lines are cut and answers lost. Raises where two
    believe that they lead, or the next begins too early.
    """
    random, server = Random(seed), FakeServer()
    processes = [Process(f"p{number}", server, random, times) for number in range(3)]
    now_s, leads, last_s = 0.0, 0, dict.fromkeys(range(3), -1e9)
    for _ in range(2_000):
        now_s += random.choice((0.01, 1.0, 9.0, 20.0))
        for process in processes:
            process.true_s = now_s
            if random.random() < 0.02:
                process.line.is_cut = not process.line.is_cut
            process.line.trouble = 0.2
        asking = random.randrange(3)
        if processes[asking].lead.is_ours() and last_s[asking] < max(last_s.values()):
            leads += 1
            since_s = now_s - max(last_s.values())
            assert since_s >= (LEASE_S - RENEW_S) * (1 - 3 * DRIFT), seed
        believing = [number for number, process in enumerate(processes) if process.believes]
        assert len(believing) <= 1, seed
        last_s.update(dict.fromkeys(believing, now_s))
    return leads


@pytest.mark.parametrize("seed", sampled(range(SEEDS), range(4)))
def test_no_two_lead_and_the_next_begins_when_what_the_last_began_is_over(seed: int) -> None:
    assert played(seed, LeaseTimes()) > 3  # it is a test only if the lead went from one to another


@pytest.mark.parametrize(
    "times", [LeaseTimes(lease_s=RENEW_S / 2), LeaseTimes(lease_s=RENEW_S + 1), LeaseTimes(renew_s=LEASE_S)]
)
def test_times_that_are_too_short_are_caught(times: LeaseTimes) -> None:
    with pytest.raises(AssertionError):
        sum(played(seed, times) for seed in range(SEEDS))


def one(server: FakeServer, name: str = "p1") -> Process:
    return Process(name, server, Random(0))


def test_of_two_that_write_at_once_one_leads() -> None:
    server = FakeServer()
    first, second = one(server, "p1"), one(server, "p2")
    first.line.between = [second.lead.is_ours]
    assert not first.lead.is_ours()
    assert server.holder == "p2"
    assert second.lead.is_ours()


def test_who_ends_gives_the_place_back_and_who_dies_is_waited_for() -> None:
    server = FakeServer()
    first, second = one(server, "p1"), one(server, "p2")
    assert first.lead.is_ours()
    assert not second.lead.is_ours()
    first.lead.close()
    assert server.holder == ""
    assert second.lead.is_ours()
    third = one(server, "p3")
    for true_s, is_ours in ((0.0, False), (LEASE_S * 0.97, False), (LEASE_S * 1.02, True)):
        third.true_s = true_s
        assert third.lead.is_ours() is is_ours
    second.true_s = RENEW_S / 2
    assert not second.lead.is_ours()  # also before its time is up


def test_a_leader_that_cannot_renew_leads_until_its_time_is_up() -> None:
    process = one(FakeServer())
    assert process.lead.is_ours()
    process.line.is_cut = True
    process.true_s = RENEW_S * 0.97
    assert process.lead.is_ours()
    process.true_s = RENEW_S * 1.02
    assert not process.lead.is_ours()
    process.line.is_cut = False
    assert process.lead.is_ours()  # nobody else has taken it


def test_a_lease_that_is_missing_is_told_and_ends_the_lead() -> None:
    server = FakeServer()
    process = one(server)
    assert process.lead.is_ours()
    server.lease = None
    with pytest.raises(KubeRefusal):
        process.lead.is_ours()
    assert not process.believes
    with pytest.raises(HoldfastError, match="There is no Lease holdfast/holdfast-control"):
        one(server, "p2")
