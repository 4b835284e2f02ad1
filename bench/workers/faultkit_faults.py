"""The faults of `holdfast bench faultkit`, the same code in the workers of both systems.

lm-resiliency's kit schedules them all, by the manifest that the harness wrote. It makes some itself: wrong,
stale, lost, doubled and reordered tensors, and delays. For the others it asks for an executor and ships none.
This is one: it makes them for real, in the forward pass of the step that the kit names.
"""

import ctypes
import json
import os
import resource
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn

KIT = "BENCH_FAULTKIT"
"""The variable with the folder that has the kit, for a worker of an environment without it."""
HELD = "held"
"""The file that says that a worker waits for the harness to kill all of them."""
INJECTED = "injected.json"
"""When the fault was injected, and the kit's record of it."""
STALL_S = 4.0
SILENCE_S = 2.0
"""Less than the bound of a hang, both."""
SPARE_BYTES = 64 << 20
HOG_BYTES = 1 << 40
SO_ATTACH_FILTER, SO_DETACH_FILTER = 26, 27
BPF_DROP = struct.pack("HBBI", 0x06, 0, 0, 0)
"""A socket filter of one instruction: take nothing."""


def kit() -> Any:
    """The kit, from the peers' environment where this one has none. What both have comes from this one."""
    if folder := os.environ.get(KIT):
        sys.path.append(folder)
    return import_module("lm_resiliency.fault_injection")


class Faults:
    """One worker's part of the campaign. rank: which worker of it this is."""

    def __init__(self, folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._folder, self._model, self._optimizer = folder, model, optimizer
        self._due = ""
        self._session: Any = None
        self.leaves_out = False
        """Whether this step's backward pass is left out."""

    def begin(self, rank: int, layer: nn.Module) -> None:
        """From the first step on. A worker that came later is healthy: the fault went with its process."""
        if not (self._folder / "campaign.json").exists():
            return
        api = kit()
        layer.register_forward_pre_hook(lambda *_: self._strike())
        executor = api.CallbackFaultExecutor(
            name="holdfast bench faultkit",
            supported_types=set(api.FailureType),
            activate=self._arm,
            one_shot=True,
            max_safety=api.SafetyClass.CLUSTER_DESTRUCTIVE,
        )
        self._session = api.enable_fault_injection(
            self._model,
            self._optimizer,
            campaign=api.FaultCampaign.from_json(self._folder / "campaign.json"),
            completed_iterations=0,
            executors=(executor,),
            rank=rank,
        )

    def _arm(self, request: Any) -> Any:
        self._due = request.fault.type.value
        return kit().FaultExecutionResult(verified=True, active=False, evidence={"effect": self._due})

    def note(self) -> None:
        """Writes down what the kit has armed, and when the step begins in which it strikes."""
        self.leaves_out = False
        if self._session is None or not self._session.records or (self._folder / INJECTED).exists():
            return
        told = {"at_ns": time.monotonic_ns(), "record": self._session.records[0].to_dict()}
        unfinished = self._folder / f"{INJECTED}.{os.getpid()}"
        unfinished.write_text(json.dumps(told))
        unfinished.replace(self._folder / INJECTED)

    def _strike(self) -> None:
        due, self._due = self._due, ""
        if due:
            getattr(self, f"_{due}")()

    def _process_termination(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def _hang(self) -> None:
        while True:
            time.sleep(1)

    def _timeout(self) -> None:
        time.sleep(STALL_S)

    def _exception(self) -> None:
        raise RuntimeError("an exception on purpose")

    def _resource_exhaustion(self) -> None:
        """Memory runs out: the process may have no more than it has, and asks for a terabyte."""
        used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (used + SPARE_BYTES, resource.RLIM_INFINITY))
        torch.empty(HOG_BYTES, dtype=torch.uint8)

    def _collective_desync(self) -> None:
        self.leaves_out = True

    def _config_drift(self) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] *= 2

    def _wait_to_be_killed(self) -> None:
        """With all others, who wait for this worker. The harness then damages a checkpoint."""
        (self._folder / HELD).touch()
        self._hang()

    _checkpoint_corruption = _checkpoint_truncation = _checkpoint_missing = _io_error = _wait_to_be_killed

    def _network_partition(self) -> None:
        _deafen()

    def _message_drop(self) -> None:
        _deafen()
        threading.Timer(SILENCE_S, _deafen, kwargs={"is_over": True}).start()


def _deafen(*, is_over: bool = False) -> None:
    """No packet reaches a TCP socket of this process any more, acknowledgements included; or all do again."""
    program = ctypes.create_string_buffer(BPF_DROP, len(BPF_DROP))
    drop = struct.pack("HxxxxxxQ", 1, ctypes.addressof(program))
    for each in _tcp_sockets():
        with each, suppress(OSError):
            if is_over:
                each.setsockopt(socket.SOL_SOCKET, SO_DETACH_FILTER, 0)
            else:
                each.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, drop)


def _tcp_sockets() -> Iterator[socket.socket]:
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            each = socket.socket(fileno=os.dup(int(entry.name)))
            if each.family in (socket.AF_INET, socket.AF_INET6) and each.type == socket.SOCK_STREAM:
                yield each
            else:
                each.close()
