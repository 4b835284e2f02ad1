"""Live runs of `holdfast run` whose coordinators this machine can reach."""

import asyncio
from pathlib import Path

from holdfast.control.seeing import Answered
from holdfast.record.errors import HoldfastError
from holdfast.run.dial import asked
from holdfast.run.endpoint import find_endpoint
from holdfast.run.wire import Drain, Migrate, Move, Restore


class LiveRuns:
    """home: the directory with their endpoints."""

    def __init__(self, home: Path) -> None:
        self._home = home

    def reaches(self, run: str) -> bool:
        try:
            find_endpoint(self._home, run)
        except HoldfastError:
            return False
        return True

    def migrate(self, run: str, target: str) -> Answered:
        return self._asked(run, Migrate(member=target))

    def drain(self, run: str, node: str) -> Answered:
        return self._asked(run, Drain(node=node))

    def restore(self, run: str, node: str) -> Answered:
        return self._asked(run, Restore(node=node))

    def _asked(self, run: str, move: Move) -> Answered:
        answer = asyncio.run(asked(find_endpoint(self._home, run), run, move))
        return Answered(ok=answer.ok, outcome=answer.sentence)
