"""How contestants in processes of their own take turns: the harness says whose block of steps it is.

So what else the machine does meets both, though they cannot share processes.
"""

import json
import time
from pathlib import Path

TURN = "turn"
"""The file in which the harness writes `NAME ROUND`, or the end."""
END = "end"
LOOK_S = 0.002
WAIT_S_MAX = 300.0
WARM_UP_STEPS = 3
"""Before the first turn. Of the last of them the memory is taken."""


class Turns:
    """One process of the contestant `name`."""

    def __init__(self, folder: Path, name: str, rank: int) -> None:
        self._turn = folder / TURN
        self._name = name
        self._memory = folder / f"{name}.{rank}.memory"
        self._turns = folder / f"{name}.{rank}.turns"
        self._begun_ns = self._begun_cpu_ns = 0

    def tell(self, memory: dict[str, int]) -> None:
        """It is ready, and has needed so much memory until now."""
        self._memory.write_text(json.dumps(memory), encoding="ascii")

    def await_begin(self, number: int) -> bool:
        """Wait for the block's turn. False: there are no more blocks."""
        deadline = time.monotonic() + WAIT_S_MAX
        while time.monotonic() < deadline:
            told = self._turn.read_text(encoding="ascii") if self._turn.exists() else ""
            if told == END:
                return False
            if told == f"{self._name} {number}":
                self._begun_ns, self._begun_cpu_ns = time.monotonic_ns(), time.process_time_ns()
                return True
            time.sleep(LOOK_S)
        raise TimeoutError(f"{self._name}: turn {number} did not come in {WAIT_S_MAX:g} s")

    def end(self) -> None:
        """The block is through, on this process's device too."""
        with self._turns.open("a", encoding="ascii") as file:
            cpu_ns = time.process_time_ns() - self._begun_cpu_ns
            file.write(f"{self._begun_ns} {time.monotonic_ns()} {cpu_ns}\n")
