"""The few functions of NCCL that Holdfast calls, through ctypes, from the library that torch itself has
loaded.

torch's ProcessGroupNCCL has a watchdog, a monitor and destructors of its own, which end, delay or block a
member when another one dies (docs/decisions/0012). Nothing here waits: communicators are non-blocking, so
every call returns at once, and `async_error` tells how it went.
"""

import ctypes
import functools
import importlib.util
from pathlib import Path
from typing import Any

from holdfast.record.errors import InputError

SONAME = "libnccl.so.2"
UNIQUE_ID_BYTES = 128
UNDEFINED_INT = -(1 << 31)
CONFIG_MAGIC = 0xCAFEBEEF
VERSION_MIN = CONFIG_VERSION = 2_17_00
"""The layout of `_Config`, in NCCL's own numbers. Later versions accept it and fill in newer fields."""
UINT8 = 1

SUCCESS = 0
UNHANDLED_CUDA_ERROR = 1
IN_PROGRESS = 7


class _UniqueId(ctypes.Structure):
    _fields_ = (("internal", ctypes.c_ubyte * UNIQUE_ID_BYTES),)


class _Config(ctypes.Structure):
    """ncclConfig_t of NCCL 2.17."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("magic", ctypes.c_uint),
        ("version", ctypes.c_uint),
        ("blocking", ctypes.c_int),
        ("cga_cluster_size", ctypes.c_int),
        ("ctas_min", ctypes.c_int),
        ("ctas_max", ctypes.c_int),
        ("net_name", ctypes.c_char_p),
    )


Communicator = ctypes.c_void_p


class NcclError(Exception):
    """An error of NCCL. result: its number; the text is NCCL's own."""

    def __init__(self, result: int, text: str) -> None:
        super().__init__(text)
        self.result = result


class Library:
    """NCCL's functions. Calls within a group belong to the thread that began it."""

    def __init__(self, functions: Any) -> None:
        self._functions = functions
        functions.ncclCommInitRankConfig.argtypes = (
            ctypes.POINTER(Communicator),
            ctypes.c_int,
            _UniqueId,
            ctypes.c_int,
            ctypes.POINTER(_Config),
        )
        for name in ("ncclSend", "ncclRecv"):
            getattr(functions, name).argtypes = (
                ctypes.c_void_p,
                ctypes.c_size_t,
                ctypes.c_int,
                ctypes.c_int,
                Communicator,
                ctypes.c_void_p,
            )
        functions.ncclCommGetAsyncError.argtypes = (Communicator, ctypes.POINTER(ctypes.c_int))
        functions.ncclCommAbort.argtypes = (Communicator,)
        functions.ncclGetErrorString.restype = ctypes.c_char_p
        functions.ncclGetLastError.argtypes = (Communicator,)
        functions.ncclGetLastError.restype = ctypes.c_char_p

    def unique_id(self) -> bytes:
        """The id that the ranks of one communicator share. A thread of NCCL waits in this process for all of
        them.
        """
        unique = _UniqueId()
        self._check(self._functions.ncclGetUniqueId(ctypes.byref(unique)))
        return bytes(unique.internal)

    def begin(self, unique_id: bytes, *, rank: int, size: int) -> Communicator:
        """Begin to make a communicator on the current device. `async_error` tells when it is ready."""
        unique = _UniqueId((ctypes.c_ubyte * UNIQUE_ID_BYTES).from_buffer_copy(unique_id))
        config = _Config(
            size=ctypes.sizeof(_Config),
            magic=CONFIG_MAGIC,
            version=CONFIG_VERSION,
            blocking=0,
            cga_cluster_size=UNDEFINED_INT,
            ctas_min=UNDEFINED_INT,
            ctas_max=UNDEFINED_INT,
        )
        communicator = Communicator()
        self._check(
            self._functions.ncclCommInitRankConfig(
                ctypes.byref(communicator), size, unique, rank, ctypes.byref(config)
            )
        )
        return communicator

    def group_start(self) -> None:
        self._check(self._functions.ncclGroupStart())

    def group_end(self) -> None:
        """Must follow every `group_start` in its thread, whatever happened in between: an open group would
        swallow the thread's later exchanges.
        """
        self._check(self._functions.ncclGroupEnd())

    def send(self, communicator: Communicator, peer: int, place: tuple[int, int], stream: int) -> None:
        """place: address and size in bytes of the data to send."""
        address, size = place
        self._check(self._functions.ncclSend(address, size, UINT8, peer, communicator, stream))

    def receive(self, communicator: Communicator, peer: int, place: tuple[int, int], stream: int) -> None:
        address, size = place
        self._check(self._functions.ncclRecv(address, size, UINT8, peer, communicator, stream))

    def async_error(self, communicator: Communicator) -> int:
        """The state of the communicator: `SUCCESS`, `IN_PROGRESS`, or an error."""
        result = ctypes.c_int()
        self._check(self._functions.ncclCommGetAsyncError(communicator, ctypes.byref(result)))
        return result.value

    def abort(self, communicator: Communicator) -> None:
        """Stop its kernels, which takes milliseconds, and free it, which takes half a second."""
        self._functions.ncclCommAbort(communicator)

    def error(self, result: int) -> NcclError:
        """The error in NCCL's own words. The longer text may belong to an earlier error: NCCL stores only
        one.
        """
        text = _decoded(self._functions.ncclGetErrorString(result))
        more = _decoded(self._functions.ncclGetLastError(None))
        return NcclError(result, f"{text}: {more}" if more and more not in text else text)

    def _check(self, result: int) -> None:
        if result not in (SUCCESS, IN_PROGRESS):
            raise self.error(result)


@functools.cache
def library() -> Library:
    """The NCCL library that torch uses."""
    for name in (SONAME, *_installed()):
        try:
            functions = ctypes.CDLL(name)
        except OSError:
            continue
        number = ctypes.c_int()
        functions.ncclGetVersion(ctypes.byref(number))
        if number.value < VERSION_MIN:
            raise InputError(
                f"NCCL {_written(number.value)} is too old: {_written(VERSION_MIN)} or later is needed.",
                hint="Install a torch with a newer NCCL.",
            )
        return Library(functions)
    raise InputError(
        f"NCCL cannot be used: {SONAME} was not found.",
        hint="Install NCCL for your CUDA, for example `pip install nvidia-nccl-cu12`.",
    )


def _written(version: int) -> str:
    """The version in the usual form. NCCL before 2.9 numbered differently, but is too old in any case."""
    return f"{version // 10_000}.{version // 100 % 100}.{version % 100}"


def _installed() -> list[str]:
    """Where pip installs NCCL."""
    found = importlib.util.find_spec("nvidia")
    places = found.submodule_search_locations if found is not None else None
    return [str(Path(place) / "nccl" / "lib" / SONAME) for place in places or ()]


def _decoded(text: bytes | None) -> str:
    return " ".join((text or b"").decode("utf-8", "replace").split())
