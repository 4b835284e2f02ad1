"""Nodes on one machine: namespaces joined by a bridge, control groups, a shared mount; and all of it removed.

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
IMAGE_BYTES = 256 << 20
SAMPLES_BYTES = 32 << 20
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
    """One node. plug: the host's end of its cable. group: the control group of its processes."""

    number: int
    limits: cgroups.Limits

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

    def limit_link(self, rate: str | None) -> None:
        """Both directions of its cable at most so fast, as in `100mbit`; None: as fast as it can."""
        for command in (["tc"], self.inside("tc")):
            device = self.plug if command == ["tc"] else DEVICE
            if rate is None:
                with contextlib.suppress(subprocess.CalledProcessError):  # there was none
                    sh(*command, "qdisc", "del", "dev", device, "root")
            else:
                shape = ("rate", rate, "burst", "64kb", "latency", "50ms")
                sh(*command, "qdisc", "replace", "dev", device, "root", "tbf", *shape)


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
        mount, device = stack.enter_context(_storage(folder))
        nodes = []
        for number in range(NODES):
            node = Node(number=number, limits=cgroups.limits(f"{PREFIX}n{number}"))
            stack.callback(node.limits.remove)
            _plug_in(node)
            nodes.append(node)
        yield Cluster(folder=folder, nodes=tuple(nodes), mount=mount, device=device)


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
def _storage(folder: Path) -> Iterator[tuple[Path, str]]:
    """A file system on a device of its own, so that it alone can be slow; where, and the device's number."""
    image, mount = folder / "image", folder / MOUNT
    mount.mkdir()
    with image.open("wb") as file:
        file.truncate(IMAGE_BYTES)
    sh("mkfs.ext4", "-q", "-F", str(image))
    sh("mount", "-o", "loop", str(image), str(mount))  # the device goes with the mount
    try:
        (mount / "samples").write_bytes(os.urandom(SAMPLES_BYTES))
        number = mount.stat().st_dev
        yield mount, f"{os.major(number)}:{os.minor(number)}"
    finally:
        sh("umount", "--lazy", str(mount))


def _remove_folders() -> None:
    """Of testbeds that were killed, with what is mounted there."""
    for folder in MEMORY.glob(f"{FOLDER}*"):
        if (folder / MOUNT).is_mount():
            sh("umount", "--lazy", str(folder / MOUNT))
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
