"""Signs that are a subject's own, and signs that others show only because of it."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import msgspec

from holdfast.detect.finding import Finding
from holdfast.diagnose.run_findings import LATE, PORT_OWN

RESENT, ANSWERED = "resent-packets", "answered-packets"
HOST_OWN = frozenset({"swapping", "memory-pressure", "thrashing", "slow-disk", "cpu-pressure", "io-pressure"})
"""Signs of which one host may have far more than others."""
DOMINATES = 3.0
"""Of two rates of resent packets: the links with a rate this many times as large lose the packets."""


def own_signs(findings: Sequence[Finding]) -> list[Finding]:
    """Leave out signs that others show because of one: if one host has by far the most of a sign in
    `HOST_OWN`, it is that host, and the others show their usual amount or a consequence.
    """
    by_metric: dict[tuple[str, str], list[Finding]] = {}
    for one in findings:
        if one.sign in HOST_OWN and one.until_ns is None:
            by_metric.setdefault((one.sign, one.metric), []).append(one)
    dropped: set[tuple[str, str, str]] = set()
    for (sign, metric), shown in by_metric.items():
        more = sorted((one.value - one.usual for one in shown), reverse=True)
        if len(shown) > 1 and more[0] >= DOMINATES * more[1]:
            dropped |= {(sign, metric, one.subject) for one in shown if one.value - one.usual < more[0]}
    kept = findings
    if dropped:
        kept = [one for one in findings if (one.sign, one.metric, one.subject) not in dropped]
    if any(one.sign == "slow-step" and one.until_ns is None for one in kept):
        # A member that is no longer late does not explain a run that is still slow.
        kept = [one for one in kept if one.sign not in LATE or one.until_ns is None]
    return list(own_resends(kept) if any(one.sign == RESENT for one in kept) else kept)


def own_resends(findings: Sequence[Finding]) -> Iterator[Finding]:
    """Packets lost on one link are resent by all that talk over it. Of several subjects that resend, the one
    with errors of its own, or with by far the most, loses the packets, and its peers answer. A host resends
    over its bad port.
    """
    broken = {one.subject.partition("/")[0]: one.subject for one in findings if one.sign in PORT_OWN}
    by_metric: dict[str, list[Finding]] = {}
    for one in findings:
        if one.sign == RESENT:
            by_metric.setdefault(one.metric, []).append(one)
    worst: set[tuple[str, str]] = set()
    for metric, resends in by_metric.items():
        resends.sort(key=lambda one: -one.value)
        own = [one for one in resends if not broken.keys().isdisjoint(one.subject.split("/"))]
        worst |= {(metric, one.subject) for one in own or _by_far_most(resends)}
    for one in findings:
        if one.sign != RESENT:
            yield one
        elif (one.metric, one.subject) in worst:
            yield msgspec.structs.replace(one, subject=broken.get(one.subject, one.subject))
        else:
            yield msgspec.structs.replace(one, sign=ANSWERED)


def _by_far_most(resends: Sequence[Finding]) -> Sequence[Finding]:
    """Those before the first gap, the largest first: one port, or all ports of one switch; else all."""
    for count, (more, less) in enumerate(pairwise(resends), start=1):
        if more.value >= DOMINATES * less.value:
            return resends[:count]
    return resends
