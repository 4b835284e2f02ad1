"""Asks a live run for its operator, even while another process takes its coordinator's place.

Until another coordinator has been chosen, a client asks again where the coordinator was and along the line of
succession, as agents and members do (seeking.py).
"""

import asyncio
from pathlib import Path

import msgspec

from holdfast import wording
from holdfast.record.errors import HoldfastError
from holdfast.run.dial import Unanswered, asked
from holdfast.run.endpoint import Endpoint, kept_line
from holdfast.run.handshake import HANDSHAKE_WAIT_S, Elsewhere, Stranger, Unreachable
from holdfast.run.seeking import SEEK_INTERVAL_S, SEEK_S, SEEK_WAIT_S, around, look_s
from holdfast.run.wire import Answer, Move, Stop, Strike


class Asker:
    """An operator's questions to one run. home: has the run's line of succession while the run is not over.
    seek_s: how long to look for a coordinator.
    """

    def __init__(self, home: Path, run: str, endpoint: Endpoint, *, seek_s: float = SEEK_S) -> None:
        self._home, self._run, self._endpoint = home, run, endpoint
        self._seek_s = seek_s

    async def ask(self, message: Strike | Move | Stop) -> Answer:
        """The run's answer. If a coordinator is lost before it answers, ask its successor, except for a
        strike, which may have been made. Raise `HoldfastError` if no coordinator answers.
        """
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        unanswered: Unanswered | None = None
        while True:
            line, is_to_be_chosen = kept_line(self._home, self._run), False
            failure: HoldfastError | None = None
            for host, port in around((self._endpoint.host, self._endpoint.port), line):
                there = msgspec.structs.replace(self._endpoint, host=host, port=port)
                try:
                    wait_s = SEEK_WAIT_S if line else HANDSHAKE_WAIT_S
                    answer = await asked(there, self._run, message, wait_s=wait_s)
                except Unanswered as error:
                    if isinstance(message, Strike):
                        raise
                    unanswered, is_to_be_chosen = error, True
                except (Unreachable, Stranger) as error:
                    failure = failure or error
                    is_to_be_chosen |= isinstance(error, Elsewhere)
                else:
                    self._endpoint = there
                    return answer
            if not look_s(line, is_to_be_chosen=is_to_be_chosen):
                raise unanswered or failure or self._missing()
            if loop.time() - began_s >= self._seek_s:
                raise self._missing()
            await asyncio.sleep(SEEK_INTERVAL_S)

    def _missing(self) -> HoldfastError:
        return HoldfastError(
            f"No coordinator of the run {self._run!r} answered within {wording.number(self._seek_s)} s.",
            hint="Ask again. If too few of its machines are left to choose one, the run ends: "
            "start it again under its name.",
        )
