"""Where the GPU-time of a simulated run really went, according to the simulation itself.

The ledger reads the events and must come to the same sums. This module reads no events and shares only the
names of the categories with the ledger: if the two disagree, one of them is wrong.
"""

from holdfast.ledger.categories import Category


class RunTruth:
    """GPU-nanoseconds by category, how far the run has come, and the GPUs outside its steps.

    `reference_gpu_ns` is a step's work with every member at full speed. Up to it, a step's time is useful the
    first time and recomputed afterwards; the rest of its time is `excess`.
    """

    def __init__(self, *, paid_gpus: int, job_gpus: int, reference_gpu_ns: int) -> None:
        self.gpu_ns: dict[Category, int] = dict.fromkeys(Category, 0)
        self.step = 0
        self.high = 0
        self.active_gpus = 0
        self._firsts: list[tuple[int, int]] = []  # up to which step, useful GPU-ns of each
        self._shapes: list[tuple[int, int, int]] = []  # since when, GPUs active, GPUs missing
        self._outside: tuple[tuple[Category, int], ...] = ()
        self._since_ns = 0  # of `_outside`
        self._paid_gpus = paid_gpus
        self._job_gpus = job_gpus
        self._reference_gpu_ns = reference_gpu_ns

    def charge(self, category: Category, gpu_ns: int) -> None:
        self.gpu_ns[category] += gpu_ns

    def stand(self, category: Category, from_ns: int, to_ns: int) -> None:
        """The whole job does no step; its missing members count too."""
        self.charge(category, sum(self._present_and_missing(from_ns, to_ns)))

    def work(self, category: Category, from_ns: int, to_ns: int) -> None:
        """Charge the time of present members to `category`, and that of missing ones as missing."""
        present, missing = self._present_and_missing(from_ns, to_ns)
        self.charge(category, present)
        self.charge(Category.MISSING_MEMBERS, missing)

    def lose(self, category: Category, from_ns: int, to_ns: int, *, steps: int, beyond: Category) -> None:
        """Charge lost work whose end is unknown. It can have been at most the reference work of so many
        `steps`, which is charged to `category`; the rest is `beyond`.
        """
        present, missing = self._present_and_missing(from_ns, to_ns)
        lost = min(present, steps * self._reference_gpu_ns)
        self.charge(category, lost)
        self.charge(beyond, present - lost)
        self.charge(Category.MISSING_MEMBERS, missing)

    def steps(self, count: int, step_ns: int, to_ns: int, excess: Category = Category.SLOWDOWN) -> None:
        """`count` steps of `step_ns` each were committed, the last one at `to_ns`."""
        again = max(0, min(count, self.high - self.step))
        gpu_ns = step_ns * self.active_gpus
        normal = min(gpu_ns, self._reference_gpu_ns)
        self.charge(Category.RECOMPUTED, again * normal)
        self.charge(Category.USEFUL, (count - again) * normal)
        self.charge(excess, count * (gpu_ns - normal))
        self.charge(Category.MISSING_MEMBERS, self._present_and_missing(to_ns - count * step_ns, to_ns)[1])
        self.step += count
        if self.step > self.high:
            self.high = self.step
            self._firsts.append((self.step, normal))

    def _present_and_missing(self, from_ns: int, to_ns: int) -> tuple[int, int]:
        """GPU-ns of the job in this time. Later calls must not ask for earlier times."""
        while len(self._shapes) > 1 and self._shapes[1][0] <= from_ns:
            del self._shapes[0]
        ends_ns = [since_ns for since_ns, _, _ in self._shapes[1:]] + [to_ns]
        present = missing = 0
        for (since_ns, active_gpus, missing_gpus), end_ns in zip(self._shapes, ends_ns, strict=True):
            duration_ns = max(0, min(end_ns, to_ns) - max(since_ns, from_ns))
            present += active_gpus * duration_ns
            missing += missing_gpus * duration_ns
        return present, missing

    def join_since(self, boundary_ns: int, now_ns: int, gpus: int) -> None:
        """The joining members turn out to have been part of the job since the boundary."""
        self.charge(Category.STARTING, -gpus * (now_ns - boundary_ns))
        index = next(at for at in reversed(range(len(self._shapes))) if self._shapes[at][0] <= boundary_ns)
        _, active, missing = self._shapes[index]
        later = [
            (since_ns, active + gpus, missing) for since_ns, active, missing in self._shapes[index + 1 :]
        ]
        self._shapes[index + 1 :] = [(boundary_ns, active + gpus, missing), *later]

    def roll_back(self, step: int) -> None:
        self.step = step

    def reshape(self, now_ns: int, *, active: int, joining: int, spare: int, out: int) -> None:
        """From now on this many GPUs take part in the steps, are about to join, are spare, or are in repair.

        The other GPUs that are paid for are missing from the job, or idle. `stand`, `work`, `lose` and
        `steps` charge the job's own part.
        """
        for category, gpus in self._outside:
            self.charge(category, gpus * (now_ns - self._since_ns))
        self._since_ns = now_ns
        elsewhere = self._paid_gpus - active - joining - spare
        drained = min(out, elsewhere)
        missing = min(elsewhere - drained, max(0, self._job_gpus - active - joining))
        self.active_gpus = active
        self._shapes.append((now_ns, active, missing))
        self._outside = (
            (Category.STARTING, joining),
            (Category.SPARE, spare),
            (Category.DRAINED, drained),
            (Category.IDLE, elsewhere - drained - missing),
        )

    def end(self, now_ns: int) -> None:
        """The run is over: steps that were rolled back and not repeated are lost."""
        self.reshape(now_ns, active=self.active_gpus, joining=0, spare=0, out=0)
        lost, upto = 0, self.high
        while upto > self.step:
            _, normal = self._firsts.pop()
            before = max(self.step, self._firsts[-1][0] if self._firsts else 0)
            lost += (upto - before) * normal
            upto = before
        self.charge(Category.USEFUL, -lost)
        self.charge(Category.DISCARDED, lost)
