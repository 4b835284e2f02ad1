"""A real Kubernetes API server with etcd, on loopback, for as long as a session of tests lasts.

No distribution packages the server any more, but Debian has its source: version 1.20, which is built once
(`make test-kubernetes`; about four minutes of two idle cores) and kept in $XDG_CACHE_HOME/holdfast, where
later runs find it. Nothing runs containers: nodes are stand-ins that tell the server what a kubelet would,
and only the tests act on objects.

The source comes from deb.debian.org, or from $HOLDFAST_DEBIAN_MIRROR, by apt with the proxies of the system.
If something cannot be fetched, one sentence says which step failed, and why.

As a script it needs only Python's standard library, and root or sudo for apt-get.
"""

import base64
import contextlib
import fcntl
import json
import os
import secrets
import shlex
import shutil
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from servers import InstallFailed, find, install
from waiting import free_port, until

PACKAGES = {"golang-go": "go", "etcd-server": "etcd", "dpkg-dev": "dpkg-source", "openssl": "openssl"}
SUITE = "bookworm"
"""The last Debian release that has the source."""
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
PACKAGE = "k8s.io/kubernetes"
SERVER = "kube-apiserver"
TAGS = "providerless"
"""Without the clouds' own code, which is a third of it."""
REFLECT, REFLECT_PACKAGE = "github.com/modern-go/reflect2", "golang-github-modern-go-reflect2-dev"
"""The source's own copy is older than Debian's compiler and cannot iterate over its maps."""
MIRROR = "http://deb.debian.org/debian"
ROOM_BYTES = 6 << 30
"""The space that the source and its build need."""
BUILD_WAIT_S = 3_600
STOP_WAIT_S = 30
START_WAIT_S = 600
ASK_WAIT_S = 30
ADMINISTRATORS = "system:masters"


class NotBuilt(Exception):
    """There is no server; the message says why."""


def cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "holdfast" / "kubernetes"


def binary() -> Path:
    return cache() / f"{SERVER}-{SUITE}"


# ---- build -----------------------------------------------------------------------------------------------


def build() -> Path:
    """The path of the server, built unless it exists; one process at a time builds."""
    made = binary()
    if made.exists() and find("etcd"):
        return made
    cache().mkdir(parents=True, exist_ok=True)
    with (cache() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if absent := [name for name, command in PACKAGES.items() if find(command) is None]:
            install(absent)
        if not made.exists():
            require_room(cache())
            with tempfile.TemporaryDirectory(prefix="build-", dir=cache()) as folder:
                _build(Path(folder), made)
    return made


def require_room(folder: Path, wanted: int = ROOM_BYTES) -> None:
    free = shutil.disk_usage(folder).free
    if free < wanted:
        raise NotBuilt(
            f"to build it takes {wanted >> 30} GiB in {folder}, and {free / (1 << 30):.1f} are free"
        )


def _build(folder: Path, made: Path) -> None:
    begun = time.monotonic()
    tree = folder / "go" / "src" / PACKAGE
    tree.parent.mkdir(parents=True)
    _say("fetching the source", begun)
    fetch(folder, tree, os.environ.get("HOLDFAST_DEBIAN_MIRROR") or MIRROR)
    environment = {
        **os.environ,
        "GOPATH": str(folder / "go"),
        "GOCACHE": str(folder / "cache"),
        "GO111MODULE": "off",
        "CGO_ENABLED": "0",
    }
    _say("generating its OpenAPI definitions", begun)
    generator = folder / "openapi-gen"
    _run(
        ["go", "build", "-o", str(generator), "./vendor/k8s.io/kube-openapi/cmd/openapi-gen"],
        tree,
        environment,
    )
    _run(
        [
            str(generator),
            *("-i", ",".join(_described(tree)), "-p", f"{PACKAGE}/pkg/generated/openapi"),
            *("-O", "zz_generated.openapi", "-r", str(folder / "violations")),
            *("-h", "vendor/k8s.io/code-generator/hack/boilerplate.go.txt"),
        ],
        tree,
        environment,
    )
    _say("compiling", begun)
    fresh = folder / SERVER
    _run(
        ["go", "build", "-tags", TAGS, "-ldflags", "-s -w", "-o", str(fresh), f"./cmd/{SERVER}"],
        tree,
        environment,
    )
    fresh.replace(made)
    _say(f"built: {made}", begun)


def fetch(folder: Path, tree: Path, mirror: str) -> None:
    """Fetch the source with apt, which checks Debian's signature, with separate lists: the system's stay
    unchanged.
    """
    if find("apt-get") is None:
        raise NotBuilt("this system has no apt-get, by which the source is fetched")
    if not KEYRING.exists():
        raise NotBuilt(
            f"{KEYRING} is missing, by which the source is checked: install debian-archive-keyring"
        )
    for name in ("lists/partial", "apt/archives/partial"):
        (folder / name).mkdir(parents=True)
    sources = folder / "sources.list"
    place = f"[signed-by={KEYRING}] {mirror} {SUITE} main"
    sources.write_text(f"deb-src {place}\ndeb {place}\n")
    options = {
        "Dir::Etc::SourceList": str(sources),
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::State::Lists": str(folder / "lists"),
        "Dir::Cache": str(folder / "apt"),
        "APT::Sandbox::User": "root" if os.geteuid() == 0 else "",
        "APT::Update::Error-Mode": "any",  # else lists that cannot be fetched are not a failure
        "Acquire::Retries": "3",
    }
    apt = ["apt-get", "-q", *(word for name, value in options.items() for word in ("-o", f"{name}={value}"))]
    for words in (["update"], ["source", "--download-only", "kubernetes"], ["download", REFLECT_PACKAGE]):
        _run(
            [*apt, *words],
            folder,
            what=f"Debian's source of Kubernetes cannot be had from {mirror} ({SUITE})",
        )
    (described,) = folder.glob("*.dsc")
    _run(["dpkg-source", "-x", described.name, str(tree)], folder)
    (newer,) = folder.glob("*.deb")
    _run(["dpkg-deb", "-x", newer.name, "newer"], folder)
    shutil.rmtree(tree / "vendor" / REFLECT)
    shutil.copytree(
        folder / "newer" / "usr" / "share" / "gocode" / "src" / REFLECT, tree / "vendor" / REFLECT
    )


def _described(tree: Path) -> list[str]:
    """The packages whose types the server describes to clients; it does not start without them."""
    folders = [tree / "pkg", *sorted((tree / "vendor" / "k8s.io").iterdir())]
    folders = [one for one in folders if one.name not in ("code-generator", "sample-apiserver")]
    found = set()
    for top in folders:
        for path in top.rglob("*.go"):
            if b"+k8s:openapi-gen=" in path.read_bytes():
                found.add(f"{PACKAGE}/{path.parent.relative_to(tree)}")
    return sorted(found)


def _run(
    command: list[str], folder: Path, environment: dict[str, str] | None = None, *, what: str = ""
) -> None:
    """what: what failed, for the message; by default the command."""
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=BUILD_WAIT_S,
        check=False,
    )
    if done.returncode != 0:
        said = done.stdout.decode("utf-8", "replace").strip()
        told = [line for line in said.splitlines() if line.startswith("E:")] or [said[-1_000:]]
        raise NotBuilt(f"{what or f'`{shlex.join(command)[:120]}` failed'}: {told[0]}")


def _say(what: str, begun: float) -> None:
    print(f"{SERVER}: {what} ({time.monotonic() - begun:.0f} s)", flush=True)


# ---- run -------------------------------------------------------------------------------------------------


class KubernetesServer:
    """An API server and its etcd, which holds all its state: the server may be killed and started again."""

    def __init__(self, program: Path, home: Path) -> None:
        self.home = home
        self.token = secrets.token_hex(16)
        self._program = program
        self._port, self._etcd_port = free_port(), free_port()
        self.url = f"https://127.0.0.1:{self._port}"
        self._trust: ssl.SSLContext | None = None
        self._etcd: subprocess.Popen[bytes] | None = None
        self._server: subprocess.Popen[bytes] | None = None

    @property
    def authority(self) -> Path:
        """The certificate of the server, which it made and signed itself."""
        return self.home / "certificates" / "apiserver.crt"

    @property
    def pid(self) -> int:
        assert self._server is not None
        return self._server.pid

    def begin(self) -> None:
        key = self.home / "accounts.key"
        subprocess.run(
            ["openssl", "genrsa", "-out", str(key), "2048"],
            check=True,
            capture_output=True,
            timeout=START_WAIT_S,
        )
        (self.home / "tokens.csv").write_text(f'{self.token},admin,admin,"{ADMINISTRATORS}"\n')
        client, peer = f"http://127.0.0.1:{self._etcd_port}", f"http://127.0.0.1:{free_port()}"
        self._etcd = self._started(
            "etcd",
            [
                str(find("etcd")),
                f"--data-dir={self.home}/etcd",
                *(f"--listen-client-urls={client}", f"--advertise-client-urls={client}"),
                *(f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}"),
                f"--initial-cluster=default={peer}",
            ],
        )
        self.start()

    def start(self) -> None:
        """Start the API server, at the address that it had before."""
        self._server = self._started(
            SERVER,
            [
                str(self._program),
                f"--etcd-servers=http://127.0.0.1:{self._etcd_port}",
                *(f"--secure-port={self._port}", "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1"),
                f"--cert-dir={self.home}/certificates",
                "--endpoint-reconciler-type=none",
                "--service-cluster-ip-range=10.0.0.0/24",
                "--service-account-issuer=https://holdfast.test",
                f"--service-account-signing-key-file={self.home}/accounts.key",
                f"--service-account-key-file={self.home}/accounts.key",
                f"--token-auth-file={self.home}/tokens.csv",
                "--authorization-mode=RBAC",
                # There is no controller to make an account's token, and none may mark a stand-in as not
                # ready.
                "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",
                "--allow-privileged=true",
            ],
        )
        until(self._is_ready, self._logs, wait_s=START_WAIT_S)

    def kill(self) -> None:
        """End it as when its machine dies: without a message."""
        assert self._server is not None
        self._server.kill()
        self._server.wait(STOP_WAIT_S)

    def stop(self) -> None:
        for process in (self._server, self._etcd):
            if process is not None and process.poll() is None:
                process.terminate()
                try:
                    process.wait(STOP_WAIT_S)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait(STOP_WAIT_S)

    def ask(self, method: str, path: str, body: object = None, *, form: str = "json", token: str = "") -> Any:
        """Send a request as an administrator would, with a client that is not the one under test."""
        request = urllib.request.Request(
            f"{self.url}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={
                "Authorization": f"Bearer {token or self.token}",
                "Content-Type": f"application/{form}",
                "User-Agent": "another-client/1.0",
            },
        )
        if self._trust is None:
            self._trust = ssl.create_default_context(cafile=str(self.authority))
        try:
            with urllib.request.urlopen(request, context=self._trust, timeout=ASK_WAIT_S) as answer:
                return json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            error.close()
            raise

    def kubeconfig(self, token: str = "") -> str:
        authority = base64.b64encode(self.authority.read_bytes()).decode()
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "here",
            "clusters": [
                {"name": "c", "cluster": {"server": self.url, "certificate-authority-data": authority}}
            ],
            "users": [{"name": "u", "user": {"token": token or self.token}}],
            "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
        }
        return json.dumps(config)  # JSON is YAML, too

    def _is_ready(self) -> bool:
        assert self._server is not None
        if self._server.poll() is not None:
            raise AssertionError(self._logs())
        try:
            self.ask("GET", "/api/v1/namespaces/default")
        except (OSError, ValueError):  # urllib's errors are OSErrors
            return False
        return True

    def _started(self, name: str, command: list[str]) -> "subprocess.Popen[bytes]":
        with (self.home / f"{name}.log").open("ab") as output:
            return subprocess.Popen(
                ["setpriv", "--pdeathsig", "TERM", *command],  # ends also if the tests are killed
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, "ETCD_UNSUPPORTED_ARCH": "arm64"},
            )

    def _logs(self) -> str:
        return "\n".join(path.read_text("utf-8", "replace")[-3_000:] for path in self.home.glob("*.log"))


@contextlib.contextmanager
def serving(program: Path) -> Iterator[KubernetesServer]:
    home = Path(tempfile.mkdtemp(prefix="holdfast-kubernetes-"))
    server = KubernetesServer(program, home)
    try:
        server.begin()
        yield server
    finally:
        server.stop()
        shutil.rmtree(home, ignore_errors=True)


def main() -> str | None:
    try:
        print(f"The API server is {build()}")
    except (NotBuilt, InstallFailed, OSError, subprocess.SubprocessError) as reason:
        return f"There is no Kubernetes API server: {reason}"
    return None


if __name__ == "__main__":
    sys.exit(main())
