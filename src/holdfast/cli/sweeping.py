"""Many simulated runs, with a progress bar on a terminal."""

from collections.abc import Sequence
from contextlib import closing

from rich.console import Console
from rich.progress import Progress

from holdfast.twin.sweep import Figures, Task
from holdfast.twin.sweeping import played


def sweep(tasks: Sequence[Task], *, processes: int | None, ray_address: str | None) -> list[Figures]:
    """Play all runs, in their order. All processes that it started have ended when this returns or raises."""
    console = Console(stderr=True)
    bar = Progress(console=console, transient=True, disable=not console.is_terminal)
    with closing(played(tasks, processes=processes, ray_address=ray_address)) as figures, bar:
        return list(bar.track(figures, total=len(tasks), description="Simulating"))
