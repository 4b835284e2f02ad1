"""Nodes on one machine: namespaces on a bridge, control groups, disks, a shared mount; and all of it removed.

Everything has a name of its own that begins with `hf-`. What an earlier testbed left behind, because it was
killed, is removed before anything is made.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import cgroups

PREFIX = "hf-"
FOLDER = "hf-testbed-"
MEMORY = Path("/dev/shm")
"""Where the shared storage lies: what else the machine's disk has to do must not show in it."""
BRIDGE = "hf-bridge"
NODES = 4
NETWORK = "10.77.0"
"""Private, and in use here only while a testbed runs."""
HOST_ADDRESS = f"{NETWORK}.1"
DEVICE = "hf-cable"
"""What a node calls its own end."""
MOUNT = "fs-0000"
DISK = "disk-n"
"""And the node's number: where a node's own disk is mounted."""
IMAGE_BYTES = 256 << 20
SAMPLES_BYTES = 32 << 20
DISK_BYTES = 128 << 20
TABLE_BYTES = 72 << 20
"""Mapped by a node's member from the node's own disk."""
BPF_RANDOM = 0xFFFFF000 + 56
"""Where a packet filter finds a random number of 32 bits (SKF_AD_OFF + SKF_AD_RANDOM in linux/filter.h)."""
BPF_LOAD, BPF_AT_LEAST, BPF_RETURN = 0x20, 0x35, 0x06
TC_PASS, TC_DROP = 0, 2
COMMAND_WAIT_S = 60.0
COMMANDS = (
    "ip",
    "tc",
    "nsenter",
    "losetup",
    "mkfs.ext4",
    "mount",
    "umount",
    "prometheus",
    "prometheus-node-exporter",
)


class Unable(Exception):
    """The testbed cannot run here, and why."""


@dataclass(frozen=True, kw_only=True)
class Node:
    """One node. plug: the host's end of its cable. group: its processes' control group. disk: its own."""

    number: int
    limits: cgroups.Limits
    disk: Path

    @property
    def name(self) -> str:
        return f"n{self.number}"

    @property
    def address(self) -> str:
        return f"{NETWORK}.{10 + self.number}"

    @property
    def namespace(self) -> str:
        return f"{PREFIX}{self.name}"

    @property
    def plug(self) -> str:
        return f"{PREFIX}plug{self.number}"

    @property
    def group(self) -> str:
        return f"{PREFIX}{self.name}"

    def inside(self, *command: str) -> list[str]:
        """The command as it is run on this node. Not by `ip netns exec`, which hides the control groups."""
        return ["nsenter", f"--net=/run/netns/{self.namespace}", *command]

    @property
    def table(self) -> Path:
        return self.disk / "table"

    @property
    def spool(self) -> Path:
        return self.disk / "spool"

    def limit_link(self, rate: str | None) -> None:
        """Both directions of its cable at most so fast, as in `100mbit`; None: as fast as it can."""
        for tc, device in self._ends():
            if rate is None:
                with contextlib.suppress(subprocess.CalledProcessError):  # there was none
                    sh(*tc, "qdisc", "del", "dev", device, "root")
            else:
                shape = ("rate", rate, "burst", "64kb", "latency", "50ms")
                sh(*tc, "qdisc", "replace", "dev", device, "root", "tbf", *shape)

    def lose(self, share: float) -> None:
        """Both directions of its cable lose so many of the packets, at random; 0: none."""
        for tc, device in self._ends():
            with contextlib.suppress(subprocess.CalledProcessError):  # there was none
                sh(*tc, "qdisc", "del", "dev", device, "ingress")
            if share:
                sh(*tc, "qdisc", "add", "dev", device, "ingress")
                sh(*tc, "filter", "add", "dev", device, "ingress", *_losing(share))

    def _ends(self) -> Iterator[tuple[list[str], str]]:
        """Of its cable: how to shape the traffic there, and what it is called."""
        yield ["tc"], self.plug
        yield self.inside("tc"), DEVICE


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """folder: for whatever files there are. mount: where the shared storage is; device: its number."""

    folder: Path
    nodes: Sequence[Node]
    mount: Path
    device: str

    @property
    def samples(self) -> Path:
        return self.mount / "samples"


def _losing(share: float) -> tuple[str, ...]:
    """A filter that drops by a throw of dice. `netem` would do the same, where the kernel has it."""
    program = (
        (BPF_LOAD, 0, 0, BPF_RANDOM),
        (BPF_AT_LEAST, 1, 0, round(share * 2**32)),
        (BPF_RETURN, 0, 0, TC_DROP),
        (BPF_RETURN, 0, 0, TC_PASS),
    )
    lines = [" ".join(map(str, line)) for line in program]
    return ("bpf", "direct-action", "bytecode", ",".join([str(len(lines)), *lines]))


def sh(*command: str) -> str:
    """Run it; what it printed. A failure says what was wrong."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_WAIT_S, check=False)
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)
    return done.stdout


def check() -> None:
    """`Unable` where it cannot work."""
    if os.geteuid() != 0:
        raise Unable("namespaces, limits and mounts need root")
    if missing := [command for command in COMMANDS if shutil.which(command) is None]:
        packages = "iproute2 e2fsprogs util-linux prometheus prometheus-node-exporter"
        raise Unable(f"{', '.join(missing)} is missing; on Debian: apt-get install {packages}")
    if missing := cgroups.missing():
        raise Unable(f"the kernel's control groups lack {', '.join(missing)}")


@contextlib.contextmanager
def cluster() -> Iterator[Cluster]:
    """The nodes and their mount, without a process on them, for as long as the block lasts."""
    check()
    with ExitStack() as stack:
        stack.enter_context(_alone())
        _remove_folders()
        folder = Path(tempfile.mkdtemp(prefix=FOLDER, dir=MEMORY))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        _remove_network()
        stack.callback(_remove_network)
        sh("ip", "link", "add", BRIDGE, "type", "bridge")
        sh("ip", "address", "add", f"{HOST_ADDRESS}/24", "dev", BRIDGE)
        sh("ip", "link", "set", BRIDGE, "up")
        mount = stack.enter_context(_file_system(folder / MOUNT, IMAGE_BYTES))
        (mount / "samples").write_bytes(os.urandom(SAMPLES_BYTES))
        nodes = [_node(number, folder, stack) for number in range(NODES)]
        device = _device(mount)
        yield Cluster(folder=folder, nodes=tuple(nodes), mount=mount, device=device)


def _node(number: int, folder: Path, stack: ExitStack) -> Node:
    disk = stack.enter_context(_file_system(folder / f"{DISK}{number}", DISK_BYTES))
    node = Node(number=number, limits=cgroups.limits(f"{PREFIX}n{number}"), disk=disk)
    stack.callback(node.limits.remove)
    node.spool.mkdir()
    with node.table.open("wb") as table:
        for _ in range(TABLE_BYTES >> 20):
            table.write(bytes(1 << 20))
        os.fsync(table.fileno())
        os.posix_fadvise(
            table.fileno(), 0, 0, os.POSIX_FADV_DONTNEED
        )  # the group that reads it first is charged for it
    _plug_in(node)
    return node


def _plug_in(node: Node) -> None:
    sh("ip", "netns", "add", node.namespace)
    sh("ip", "link", "add", node.plug, "type", "veth", "peer", "name", DEVICE, "netns", node.namespace)
    sh("ip", "link", "set", node.plug, "master", BRIDGE, "up")
    for command in (
        ("address", "add", f"{node.address}/24", "dev", DEVICE),
        ("link", "set", DEVICE, "up"),
        ("link", "set", "lo", "up"),
    ):
        sh("ip", "-n", node.namespace, *command)


def _remove_network() -> None:
    """By the names that only a testbed gives."""
    for number in range(NODES):
        if Path(f"/sys/class/net/{PREFIX}plug{number}").exists():
            sh("ip", "link", "delete", f"{PREFIX}plug{number}")
        if Path(f"/run/netns/{PREFIX}n{number}").exists():
            sh("ip", "netns", "delete", f"{PREFIX}n{number}")
    if Path(f"/sys/class/net/{BRIDGE}").exists():
        sh("ip", "link", "delete", BRIDGE)


@contextlib.contextmanager
def _file_system(mount: Path, size_bytes: int) -> Iterator[Path]:
    """A file system on a device of its own, so that it alone can be slow or full."""
    image = mount.with_suffix(".image")
    mount.mkdir()
    with image.open("wb") as file:
        file.truncate(size_bytes)
    sh("mkfs.ext4", "-q", "-F", "-m", "0", str(image))  # nothing is set aside for root
    sh("mount", "-o", "loop", str(image), str(mount))  # the device goes with the mount
    try:
        yield mount
    finally:
        sh("umount", "--lazy", str(mount))


def _device(mount: Path) -> str:
    number = mount.stat().st_dev
    return f"{os.major(number)}:{os.minor(number)}"


def _remove_folders() -> None:
    """Of testbeds that were killed, with what is mounted there."""
    for folder in MEMORY.glob(f"{FOLDER}*"):
        for mount in filter(Path.is_mount, folder.iterdir()):
            sh("umount", "--lazy", str(mount))
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """`Unable` while another testbed runs: the names are the same. A name of the kernel's, gone with us."""
    with socket.socket(socket.AF_UNIX) as held:
        try:
            held.bind(f"\0{FOLDER}")
        except OSError:
            raise Unable("another testbed runs on this machine") from None
        yield
