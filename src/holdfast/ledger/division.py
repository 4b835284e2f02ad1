"""Divide a run's measured time into normal step time and the excess, stage by stage.

The tally has the time of steps by stage and bin of work; the timeline says when. Each stage has a reference:
declared, reported by members, or estimated as plateaus (`normal`). The sum under each key is divided plateau
by plateau, in integers, and the parts sum to the whole.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Literal, TypeVar

from holdfast.ledger.categories import Category
from holdfast.ledger.counts import ReferenceStage
from holdfast.ledger.fold import LATE_SHARE_MIN, Fold
from holdfast.ledger.normal import Plateau, StageCourse, declared_plateau, plateaus, quick_step
from holdfast.ledger.split import Silence
from holdfast.ledger.tally import AFTER_STEPS, IN_FLIGHT, LAUNCH, PLAIN, STAGE, measured, silence_of

Origin = Literal["declared", "estimated", "members"]
"""Where a reference comes from."""

Parts = tuple[tuple[Category, int], ...]
_KEPT = (Category.USEFUL, Category.SLOWDOWN)
_Key = TypeVar("_Key")
_Place = tuple[int, int]
"""The number of a plateau, and a key."""


class Division:
    """The plateaus of a settled fold, and every sum of it by category."""

    def __init__(self, fold: Fold) -> None:
        self._fold = fold
        self._accounts = fold.accounts
        self._launch = Category.STARTING if fold.instrumented else Category.UNATTRIBUTED
        self.plateaus: list[Plateau] = []
        self.origins: list[Origin | None] = []
        # For each stage: where its plateaus begin, and the number of the first.
        self._firsts: list[tuple[list[int], int]] = []
        for number, stage in enumerate(fold.stages):
            self._add_stage(number, stage)
        self.wholes: dict[_Place, int] = {}
        self.splits: dict[_Place, Parts] = {}
        self._split()
        self.parts = summed(part for split in self.splits.values() for part in split)
        self.unknown: dict[str, int] = summed(
            part for (_, key), split in self.splits.items() for part in silences(key, split)
        )

    # -- stages --------------------------------------------------------------------------------------

    def _add_stage(self, number: int, stage: ReferenceStage) -> None:
        if stage.step_ns:
            reference = Fraction(stage.step_ns * (stage.step_gpus or self._accounts.gpus_max))
            origin: Origin | None = "declared"
            found = [declared_plateau(number, reference, len(self._accounts.timeline.buckets))]
        else:
            found, origin = self._estimated(number)
        self.origins.append(origin)
        if found or not self.plateaus:
            self._firsts.append(([one.first for one in found], len(self.plateaus)))
        else:
            self._firsts.append(
                ([0], len(self.plateaus) - 1)
            )  # no plateaus of its own: use the last one before
        self.plateaus += found

    def _estimated(self, number: int) -> tuple[list[Plateau], Origin | None]:
        accounts, fold = self._accounts, self._fold
        found = plateaus(
            StageCourse(
                stage=number,
                tally=accounts.tally,
                timeline=accounts.timeline,
                slow=self._known_slow(),
                faults=self._survived_faults(),
                entries=fold.progress.entries_gpu_ns,
                within=self._entries(number),
            )
        )
        if not found:
            return [], None
        by_members = quick_step(fold.unhindered, number)
        least = min(one.reference for one in found)
        if by_members is not None and by_members < least * (1 - Fraction(LATE_SHARE_MIN)):
            return [one._replace(reference=by_members, doubt_gpu_ns=0) for one in found], "members"
        return found, "estimated"

    def _entries(self, number: int) -> tuple[int, int]:
        """The range of a stage among the first executions of steps: from, to."""
        stages = list(self._fold.stages)
        end = stages[number + 1].entry if number + 1 < len(stages) else self._fold.progress.entry
        return stages[number].entry, end

    def _known_slow(self) -> list[tuple[float, float]]:
        """Spans, in buckets, that the record calls slow: something degraded, or one member held up all."""
        now_ns = self._accounts.now_ns
        spans = [
            (one.began_ns, one.recovered_ns or now_ns)
            for one in self._accounts.incidents
            if one.severity == "degraded"
        ]
        spans += [(held.from_ns, held.to_ns) for held in self._fold.held_up]
        return [(self._bucket(from_ns), self._bucket(to_ns)) for from_ns, to_ns in spans]

    def _survived_faults(self) -> list[float]:
        return [
            self._bucket(one.began_ns)
            for one in self._accounts.incidents
            if one.severity == "fatal" and not one.restarts and one.recovered_ns is not None
        ]

    def _bucket(self, at_ns: int) -> float:
        timeline = self._accounts.timeline
        return (at_ns - timeline.origin_ns) / (1 << timeline.width_log2)

    # -- splitting -----------------------------------------------------------------------------------

    def place(self, key: int, bucket: int) -> _Place:
        """The plateau and key that the time under a key in a bucket of the timeline belongs to."""
        if key < PLAIN:
            return -1, key
        firsts, first = self._firsts[key // STAGE]
        if not firsts:
            return -1, key
        return first + max(0, bisect_right(firsts, bucket) - 1), key

    def _split(self) -> None:
        wholes = self.wholes
        self.buckets: list[dict[_Place, int]] = []  # the timeline by place
        known: dict[_Place, _Place] = {}  # shared objects: a long run has few places, in many buckets
        for number, bucket in enumerate(self._accounts.timeline.buckets):
            placed = {}
            for key, gpu_ns in bucket.items():
                place = self.place(key, number)
                place = known.setdefault(place, place)
                placed[place] = gpu_ns
                wholes[place] = wholes.get(place, 0) + gpu_ns
            self.buckets.append(placed)
        self._places: dict[int, list[int]] = {}
        for place, gpu_ns in self.wholes.items():
            self.splits[place] = self._parts(place, gpu_ns)
            self._places.setdefault(place[1], []).append(place[0])
        self._kept_keys = {
            key for (_, key), ((normal, _), *_) in self.splits.items() if normal == Category.USEFUL
        }

    def _parts(self, place: _Place, gpu_ns: int) -> Parts:
        number, key = place
        if key < PLAIN:
            return ((self._plain(key), gpu_ns),)
        told = measured(key)
        if number < 0:
            return (told.normal, gpu_ns), (told.excess, 0)  # without a reference there is no excess
        tally = self._accounts.tally
        steps = Fraction(tally.steps.get(key, 0) * gpu_ns, tally.gpu_ns.get(key, 0) or 1)
        return self.plateaus[number].split(told, gpu_ns, steps)

    def _plain(self, key: int) -> Category:
        if key in (AFTER_STEPS, IN_FLIGHT):
            return Category.UNATTRIBUTED
        return self._launch if key == LAUNCH else Category(key)

    def divided(self, place: _Place, gpu_ns: int, after_gpu_ns: int = 0) -> list[tuple[Category, int]]:
        """Split a part of a place's sum in the same ratio as the whole, without loss.

        after_gpu_ns: how much of the sum was divided before. All parts, in order, sum to the whole split.
        """
        (normal, whole_normal), *excess = self.splits[place]
        if not excess:
            return [(normal, gpu_ns)]
        whole = self.wholes[place] or 1
        part = (after_gpu_ns + gpu_ns) * whole_normal // whole - after_gpu_ns * whole_normal // whole
        return [(normal, part), (excess[0][0], gpu_ns - part)]

    def between(self, key: int, before_gpu_ns: int, gpu_ns: int) -> list[tuple[Category, int]]:
        """The part of a key's sum that follows `before_gpu_ns`, by category. Consecutive parts sum to the
        whole: the time tallied first belongs to the first plateau.
        """
        parts: list[tuple[Category, int]] = []
        for number in sorted(self._places.get(key, ())):
            place = number, key
            whole = self.wholes[place]
            part = min(gpu_ns, whole - before_gpu_ns)
            if part > 0:
                parts += self.divided(place, part, before_gpu_ns)
                gpu_ns -= part
            before_gpu_ns = max(0, before_gpu_ns - whole)
        return parts

    def kept(self, key: int, parts: Iterable[tuple[Category, int]]) -> int:
        """GPU-ns of these parts of a key's sum in steps that the run kept, at any speed: their normal time
        and their slowdown.
        """
        if key not in self._kept_keys:
            return 0
        return sum(part for category, part in parts if category in _KEPT)

    def losses(self, sums: Mapping[int, int], from_ns: int, to_ns: int) -> dict[Category, int]:
        """The incident's losses, rounded down: each key is split as it was while the incident lasted."""
        timeline = self._accounts.timeline
        parts: list[tuple[Category, int]] = []
        for key, gpu_ns in sums.items():
            first = self.place(key, from_ns - timeline.origin_ns >> timeline.width_log2)[0]
            last = self.place(key, to_ns - timeline.origin_ns >> timeline.width_log2)[0]
            numbers = self._places.get(key, [])
            within = [number for number in numbers if first <= number <= last] or numbers
            whole = sum(self.wholes[number, key] for number in within) or 1
            for number in within:
                parts += [(category, gpu_ns * part // whole) for category, part in self.splits[number, key]]
        return summed(part for part in parts if part[0] not in (Category.USEFUL, Category.UNATTRIBUTED))

    def excess_of(self, key: int) -> int:
        """The part of a measured key's sum beyond its normal part."""
        return sum(self.splits[number, key][1][1] for number in self._places.get(key, ()))


def silences(key: int, parts: Iterable[tuple[Category, int]]) -> Iterable[tuple[Silence, int]]:
    """The unattributed ones of these parts of a key's sum, by silence."""
    return ((silence_of(key), part) for category, part in parts if category == Category.UNATTRIBUTED)


def summed(parts: Iterable[tuple[_Key, int]]) -> dict[_Key, int]:
    sums: dict[_Key, int] = {}
    for key, part in parts:
        sums[key] = sums.get(key, 0) + part
    return sums
