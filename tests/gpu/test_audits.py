"""Audits on a GPU: prints are made there, and a wrong member is found before the commit."""

from typing import Any

import pytest
import torch

from holdfast.run.wire import Corruptible, PlannedFault
from holdfast.train.prints import print_of

STEPS = 8


def test_a_print_is_the_same_on_every_device() -> None:
    tensors = [torch.arange(100_003, dtype=torch.float32), torch.ones(5, dtype=torch.bfloat16)]
    there = [tensor.cuda() for tensor in tensors]
    expected = int(print_of(tensors, torch.device("cpu")))
    assert int(print_of(there, there[0].device)) == expected


@pytest.mark.parametrize("what", ["gradient", "weight"])
def test_a_member_that_is_wrong_is_replaced_before_the_step_is_kept(cluster: Any, what: Corruptible) -> None:
    fault = PlannedFault(id=7, step=4, moment="lane", rank=1, fault="corrupt", what=what)
    run = cluster.train("plain", members=4, steps=STEPS, audit_rate=1.0, faults=(fault,), pace_s=0.2)
    assert run.ending.outcome == "completed", run.story
    assert run.digest == cluster.train("plain", steps=STEPS).digest
    assert any("n0.1 lost (silent corruption: " in line for line in run.said), run.story
