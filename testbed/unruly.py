"""Run a training script in which one thing goes wrong, at one line, on one member.

    UNRULY='{"act": "exception", "spot": "lane", "step": 40, "member": "n0.1", "marks": "DIR"}' \
        holdfast run testbed/unruly.py examples/nanogpt/train.py ARGUMENTS

The script is not changed on disk. Calls are put into what was parsed of it, without a line of their own, so
a traceback shows the script as it is. Spots: `lane` before `lane.backward(...)`, `between` after
`step.commit()`, `evaluation` at the start of a function `loss_of`.
"""

import ast
import itertools
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, Literal

import msgspec

Act = Literal["kill", "exception", "exit", "os-exit", "break", "gil", "loop", "slow"]
Spot = Literal["lane", "between", "evaluation"]
GIL_S = 10.0
SLOW_S = 0.1
CALIBRATION_ITEMS = 5_000_000
STRUCK = "struck"
"""The file in the folder `marks` that tells when it went wrong, in nanoseconds of the wall clock."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What goes wrong, where and on which member.

    member: its name, or empty for rank 0. again: in every step from that one on, on every member of that name
    or rank; otherwise once in the whole run.
    """

    act: Act
    spot: Spot
    step: int
    marks: str
    member: str = ""
    again: bool = False
    gil_s: float = GIL_S


class Unruly:
    """What the script calls at its spots."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def __call__(self, spot: str, run: Any, step: int) -> bool:
        """Whether the script should leave its loop here."""
        plan = self._plan
        is_meant = run.member == plan.member if plan.member else run.rank == 0
        if spot != plan.spot or step < plan.step or not is_meant:
            return False
        is_first = _marked(Path(plan.marks) / STRUCK)
        return self._act() if is_first or plan.again else False

    def _act(self) -> bool:
        match self._plan.act:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "exception":
                raise RuntimeError("the script fails here on purpose")
            case "exit":
                sys.exit(0)
            case "os-exit":
                os._exit(0)
            case "break":
                return True
            case "gil":
                hold_the_gil(self._plan.gil_s)
            case "loop":
                while True:
                    pass
            case "slow":
                time.sleep(SLOW_S)
        return False


def hold_the_gil(seconds: float) -> None:
    """Compute for so long in one call that never lets another Python thread run, as a large sort does."""
    began_s = time.monotonic()
    sum(itertools.repeat(1, CALIBRATION_ITEMS))
    items_per_s = CALIBRATION_ITEMS / (time.monotonic() - began_s)
    sum(itertools.repeat(1, int(seconds * items_per_s)))


def _marked(path: Path) -> bool:
    """Whether this is the first time."""
    try:
        with path.open("x", encoding="ascii") as file:
            file.write(str(time.time_ns()))
    except FileExistsError:
        return False
    return True


class Spots(ast.NodeTransformer):
    """Puts the calls in."""

    def __init__(self) -> None:
        self.found: set[str] = set()

    def visit_Expr(self, node: ast.Expr) -> Any:
        match ast.unparse(node.value):
            case "step.commit()":
                return [node, self._call("between", "step.number", node, leaves=True)]
            case text if text.startswith("lane.backward("):
                return [self._call("lane", "step.number", node), node]
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        self.generic_visit(node)
        if node.name == "loss_of":
            node.body.insert(0, self._call("evaluation", "state.version", node.body[0]))
        return node

    def _call(self, spot: str, step: str, at: ast.AST, *, leaves: bool = False) -> ast.stmt:
        self.found.add(spot)
        call = f"unruly({spot!r}, run, {step})"
        (made,) = ast.parse(f"for _ in ():\n    if {call}: break" if leaves else call).body
        statement = made.body[0] if isinstance(made, ast.For) else made
        for part in ast.walk(statement):
            ast.copy_location(part, at)
        return statement


def main() -> None:
    plan = msgspec.json.decode(os.environ["UNRULY"], type=Plan)
    script, sys.argv = sys.argv[1], sys.argv[1:]
    spots = Spots()
    tree = ast.fix_missing_locations(spots.visit(ast.parse(Path(script).read_text(encoding="utf-8"), script)))
    if plan.spot not in spots.found:
        sys.exit(f"{script} has no place for {plan.spot}.")
    sys.path[0] = str(Path(script).parent)
    scope = vars(sys.modules["__main__"])
    scope["unruly"] = Unruly(plan)
    exec(compile(tree, script, "exec"), scope)


if __name__ == "__main__":
    main()
