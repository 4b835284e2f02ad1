"""What a warm process does for the script: it is used, it hurts nothing, and the bits stay the same."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from holdfast.run.wire import PlannedFault
from holdfast.train import determinism
from holdfast.train.rehearsal import rehearse

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")


class Doubling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.inner(x) * 2
        return result


class Compiler:
    """A backend of torch.compile that counts the graphs it is given."""

    def __init__(self) -> None:
        self.compiled = 0

    def __call__(self, graph: Any, _: Any) -> Callable[..., Any]:
        self.compiled += 1
        forward: Callable[..., Any] = graph.forward
        return forward

    def run(self, _: torch.device = CPU) -> None:
        model: Any = torch.compile(Doubling(), backend=self)
        model(torch.zeros(2, 4)).sum().backward()


@pytest.fixture
def compiler(alone: Path) -> Compiler:
    torch._dynamo.reset()
    return Compiler()


def test_what_was_compiled_for_a_model_that_is_gone_serves_the_next(compiler: Compiler) -> None:
    rehearse(compiler.run, CPU)
    assert compiler.compiled == 1
    determinism.require(True, CPU)  # as protect() does
    compiler.run()
    assert compiler.compiled == 1


def test_under_other_settings_it_would_be_compiled_again(compiler: Compiler) -> None:
    """Otherwise the settings of a rehearsal would prove nothing."""
    compiler.run()
    determinism.require(True, CPU)
    compiler.run()
    assert compiler.compiled == 2


def test_a_failure_is_told_and_leaves_the_settings_as_they_were(
    alone: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(_: torch.device) -> None:
        assert torch.are_deterministic_algorithms_enabled()
        raise ValueError("no such layer")

    rehearse(fail, CPU)
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    told = capfd.readouterr().err.splitlines()
    assert len(told) == 1
    assert told[0].endswith("continues without it: ValueError: no such layer")


def test_what_a_rehearsal_sets_is_put_back(alone: Path) -> None:
    def careless(_: torch.device) -> None:
        torch.set_grad_enabled(False)
        torch.set_default_dtype(torch.bfloat16)

    rehearse(careless, CPU)
    assert torch.is_grad_enabled()
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.soak
def test_a_replacement_that_compiled_in_the_pool_leaves_the_same_bits(cluster: Any) -> None:
    """It had other random numbers there, on purpose."""
    alone = cluster.train("compiled_model")
    faults = [PlannedFault(id=1, step=10, moment="lane", rank=1)]
    disturbed = cluster.train("rehearsed", members=2, faults=faults, pace_s=0.5)
    assert disturbed.ending.outcome == "completed", disturbed.story
    assert disturbed.struck == 1
    took_over = [path.stem for path in disturbed.folder.glob("*.json")]
    assert [member for member in took_over if (disturbed.folder / f"{member}.warm").exists()], disturbed.story
    assert disturbed.digest == alone.digest
