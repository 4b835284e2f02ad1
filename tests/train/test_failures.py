"""Which of torch's exceptions count as a failed GPU; and a run that continues after one.

The texts were captured on an H200 with torch 2.11, except NCCL's, which is from
https://github.com/awslabs/awsome-distributed-ai/issues/192.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from waiting import WAIT_S

from holdfast.record.errors import InputError
from holdfast.record.events import FaultObserved, GenerationOpened
from holdfast.record.journal import Damage, read_directory
from holdfast.train.failures import DeviceMemory, ObservedFailure, device_failure, gpu_memory

pytestmark = pytest.mark.slow


ADVICE = (
    "\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below "
    "might be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
    "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
)
ASSERTED = (
    "CUDA error: device-side assert triggered\nSearch for `cudaErrorAssert' in https://docs.nvidia.com"
    + ADVICE
)
ILLEGAL = "CUDA error: an illegal memory access was encountered" + ADVICE
NO_MEMORY = (
    "CUDA out of memory. Tried to allocate 80.00 GiB. GPU 0 has a total capacity of 139.80 GiB of which "
    "39.19 GiB is free. Including non-PyTorch memory, this process has 100.60 GiB memory in use. Of the "
    "allocated memory 100.00 GiB is allocated by PyTorch, and 2.00 MiB is reserved by PyTorch but "
    "unallocated."
)
CUBLAS = "CUDA error: CUBLAS_STATUS_INTERNAL_ERROR when calling `cublasCreate(handle)`"
NCCL = (
    "NCCL error in: /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1331, unhandled system error "
    "(run with NCCL_DEBUG=INFO for details), NCCL version 2.18.5\n"
    "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.\n"
    "Last error:\nsocketStartConnect: Connect to 127.0.0.1<45069> failed : Software caused connection abort"
)


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (torch.AcceleratorError(ASSERTED), "CUDA error: device-side assert triggered"),
        (torch.AcceleratorError(ILLEGAL), "CUDA error: an illegal memory access was encountered"),
        (RuntimeError(ASSERTED), "CUDA error: device-side assert triggered"),  # before torch 2.8
        (RuntimeError(CUBLAS), "CUDA error: CUBLAS_STATUS_INTERNAL_ERROR"),
        (
            RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
            "CUDA error: CUDNN_STATUS_EXECUTION_FAILED",
        ),
        (torch.AcceleratorError(f"CUDA error: out of memory{ADVICE}"), "CUDA out of memory"),
        (torch.OutOfMemoryError(NO_MEMORY), "CUDA out of memory"),
        (torch.distributed.DistBackendError(NCCL), "NCCL error: unhandled system error"),
        (
            torch.distributed.DistBackendError("NCCL error in: x.cpp:1, unhandled cuda error (run with ...)"),
            "NCCL error: unhandled cuda error",
        ),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_failed_device_is_told_in_words_that_are_always_the_same(error: Exception, failure: str) -> None:
    found = device_failure(error, DeviceMemory)
    assert found is not None
    assert found.failure == failure


def failed_on_a_cpu() -> Exception:
    try:
        torch.ones(2, 3) @ torch.ones(2, 3)
    except RuntimeError as error:
        return error
    raise AssertionError


@pytest.mark.parametrize(
    "error",
    [
        failed_on_a_cpu(),
        RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!"
        ),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory"),
        ValueError("CUDA error: device-side assert triggered"),
        ValueError("CUDA out of memory"),
        RuntimeError("my log says: CUDA error: device-side assert triggered"),
        torch.distributed.DistBackendError("gloo is not there"),
        InputError("CUDA error: no.", hint="None."),
        MemoryError(),
        KeyboardInterrupt(),
        None,
    ],
    ids=lambda value: str(value)[:30],
)
def test_anything_else_is_not(error: BaseException | None) -> None:
    assert device_failure(error) is None


def test_an_error_that_led_to_another_counts() -> None:
    caused, handled = ValueError("the step failed"), KeyError("x")
    caused.__cause__ = torch.AcceleratorError(ILLEGAL)
    handled.__context__ = caused
    assert device_failure(handled) == ObservedFailure("CUDA error: an illegal memory access was encountered")
    handled.__suppress_context__ = True
    assert device_failure(handled) is None
    handled.__cause__ = handled  # a chain that never ends
    assert device_failure(handled) is None


def test_an_out_of_memory_error_says_how_much_was_free() -> None:
    memory = DeviceMemory("at most 100.00 GiB was allocated", "39.00 GiB of 139.80 GiB is free now")
    found = device_failure(torch.OutOfMemoryError(NO_MEMORY), lambda: memory)
    assert found is not None
    assert found.detail == (
        "80.00 GiB was asked for; 39.19 GiB of 139.80 GiB was free; at most 100.00 GiB was allocated"
    )
    found = device_failure(torch.AcceleratorError("CUDA error: out of memory"), lambda: memory)
    assert found is not None
    assert found.detail == "39.00 GiB of 139.80 GiB is free now; at most 100.00 GiB was allocated"


def test_an_nccl_error_has_its_last_message() -> None:
    found = device_failure(torch.distributed.DistBackendError(NCCL))
    assert found is not None
    assert found.detail == (
        "socketStartConnect: Connect to 127.0.0.1<45069> failed : Software caused connection abort"
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="There is a GPU.")
def test_without_a_gpu_nothing_is_known_of_its_memory() -> None:
    assert gpu_memory() == DeviceMemory()


# ---- under a real coordinator, with real processes -------------------------------------------------------

TRAIN = f"""
import os, sys
import torch
import holdfast.train as hf

with hf.join() as run:
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    state = run.protect(model, torch.optim.SGD(model.parameters(), lr=0.1), lanes=4, seed=1)
    for step in state.steps(8):
        for lane in step.lanes:
            if step.number == 5 and run.member in sys.argv[1:]:
                raise torch.OutOfMemoryError({NO_MEMORY!r})
            lane.backward(model(torch.randn(16, 4)).square().mean())
        step.commit()
    if run.rank == 0:
        print("digest", state.digest(), flush=True)
"""


def launched(directory: Path, *command: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST")}
    (directory / "train.py").write_text(TRAIN, encoding="utf-8")
    return subprocess.run(
        [sys.executable, *command],
        cwd=directory,
        env={**kept, "HOLDFAST_HOME": str(directory / "home"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )


def test_a_member_that_runs_out_of_memory_is_replaced_and_the_bits_are_the_same(tmp_path: Path) -> None:
    alone = launched(tmp_path, "train.py")
    assert alone.returncode == 0, alone.stderr
    digest = alone.stdout.split()[-1]
    flags = ("--run", "r", "--nproc-per-node", "2", "--warm", "0")
    done = launched(tmp_path, "-m", "holdfast", "run", *flags, "train.py", "n0.1")
    assert done.returncode == 0, done.stderr
    assert f"digest {digest}" in done.stderr
    assert "n0.1 lost (CUDA out of memory): 80.00 GiB was asked for; 39.19 GiB of 139.80 GiB" in done.stderr
    assert "generation 2: without n0.1 (CUDA out of memory); step 5 goes on" in done.stderr, done.stderr
    assert done.stderr.count("[n0.1] Traceback (most recent call last)") == 1
    assert done.stderr.count("Traceback") == 1
    events = [
        item for item in read_directory(tmp_path / "home" / "journal", {}) if not isinstance(item, Damage)
    ]
    (fault,) = [event for event in events if isinstance(event, FaultObserved)]
    assert (fault.subject, fault.fault) == ("n0.1", "CUDA out of memory")
    assert "torch.OutOfMemoryError: CUDA out of memory. Tried" in fault.detail
    reasons = [event.reason for event in events if isinstance(event, GenerationOpened) and event.run == "r"]
    assert reasons[:2] == ["", "lost: n0.1 (CUDA out of memory)"]


def test_where_all_run_out_of_memory_the_run_ends_with_one_traceback(tmp_path: Path) -> None:
    members = ("n0.0", "n0.1", "n0.2", "n0.3", "n0.0+1", "n0.1+1")
    done = launched(tmp_path, "-m", "holdfast", "run", "--nproc-per-node", "2", "train.py", *members)
    assert done.returncode == 1
    assert done.stderr.count("Traceback (most recent call last)") == 1
    assert re.search(r"failed at step 5 with the same error \(CUDA out of memory\)", done.stderr)
    assert "the script's mistake" in done.stderr
