"""A check of the node that the suite runs on: its GPU is tried, and is good."""

import json
import time

import torch
from click.testing import CliRunner

from holdfast.check.gpus import PARTS
from holdfast.cli.check import command
from holdfast.train.gpu_probe import _reduced


def test_this_node_is_good_within_a_minute(has_gpu: bool) -> None:
    begun = time.monotonic()
    flags = ["--json", "--skip", "clock", "--skip", "kernel", *(["--gpus", "1"] if has_gpu else [])]
    ended = CliRunner().invoke(command, flags, standalone_mode=False)
    found = json.loads(ended.stdout)
    assert ended.return_value == 0, found
    assert time.monotonic() - begun < 60
    names = {one["name"] for one in found["checks"]}
    assert {f"gpu0.{part}" for part in PARTS} <= names or not has_gpu


def test_what_gpus_add_up_together_is_right(has_gpu: bool) -> None:
    if has_gpu:
        count = torch.cuda.device_count()
        told = dict(_reduced(range(count)))
        assert told["reduce_wrong"] == 0
        assert (told["reduce"] > 0) is (count > 1)
