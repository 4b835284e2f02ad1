"""slurmrestd: a real one that asks for tokens, stand-ins for newer ones, and answers that are none."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from hostile_servers import Act, hostile, is_silent, says
from waiting import WAIT_S

from holdfast.control.cluster import NodeView
from holdfast.control.policy import SlurmPolicy, read_policy
from holdfast.control.seeing import PlacedJob
from holdfast.record.clock import SystemClock
from holdfast.record.errors import HoldfastError, InputError
from holdfast.schedulers.scheduler import NotOurs
from holdfast.schedulers.slurm import SlurmScheduler
from holdfast.schedulers.slurm_documents import jobs_of, nodes_of, read_document, windows_of
from holdfast.schedulers.slurm_rest import SlurmRest, read_api
from holdfast.signals.http_client import Limits
from tests.schedulers.conftest import seen

REASON = "holdfast: gpu-fault (control-1-0000000001)"
NAMELESS = 54_321
QUICK = Limits(total_s=2.0, body_bytes_max=1 << 20)
NEWER: dict[str, Any] = {
    "nodes": [
        {
            "name": "gpu-1",
            "state": ["MIXED", "DRAIN"],
            "reason": REASON,
            "gres": "gpu:h100:8(S:0-1)",
            "boot_time": {"set": True, "infinite": False, "number": 1_793_520_000},
        },
        {"name": "gpu-2", "state": ["IDLE"], "reason": "", "boot_time": {"set": False, "number": 0}},
    ],
    "jobs": [
        {"job_id": 7, "job_state": ["RUNNING"], "nodes": "gpu-[1-2]", "name": "pretrain"},
        {"job_id": 8, "job_state": ["COMPLETED"], "nodes": "gpu-2", "name": "over"},
        {"job_id": 9, "job_state": ["PENDING"], "nodes": "", "name": "waits"},
    ],
    "reservations": [
        {
            "name": "tide",
            "flags": ["MAINT", "SPEC_NODES"],
            "node_list": "gpu-2",
            "start_time": {"set": True, "number": 1},
            "end_time": {"set": True, "number": 2},
        },
        {"name": "talk", "flags": [], "node_list": "gpu-1", "start_time": 1, "end_time": 2},
    ],
}
"""As 23.11 tells it."""
POST: dict[str, Any] = {"/slurm/v0.0.40/node/{node_name}": {"get": {}, "post": {}}}


def document(told: object) -> Any:
    return read_document(json.dumps(told).encode(), who="a test")


# ---- a real one ------------------------------------------------------------------------------------------


@pytest.mark.root
@pytest.mark.slow
def test_a_real_one_lets_in_who_has_a_token_and_tells_what_the_commands_tell(
    slurm_of: Callable[..., AbstractContextManager[Path]],
    slurmrestd: Callable[..., AbstractContextManager[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("SLURM_JWT", raising=False)
    said: list[str] = []
    with slurm_of(["127.0.0.1"], has_tokens=True) as settings, slurmrestd(settings, has_tokens=True) as place:
        monkeypatch.setenv("SLURM_CONF", str(settings))
        made = subprocess.run(
            ["scontrol", "token", "lifespan=3600"], check=True, capture_output=True, text=True, timeout=WAIT_S
        ).stdout
        good, bad, empty = tmp_path / "token", tmp_path / "bad", tmp_path / "empty"
        for path in (good, bad, empty):
            path.touch(0o600)
        good.write_text(made)
        bad.write_text("x" + made.removeprefix("SLURM_JWT="))
        with closing(SlurmRest(SlurmPolicy(rest=place, token_file=str(good)), 8)) as rest:
            scheduler = SlurmScheduler(8, rest, said.append)
            assert scheduler.look(0) == SlurmScheduler(8).look(0)
            for _ in range(2):
                scheduler.drain("127.0.0.1", REASON)
                assert seen(scheduler)["127.0.0.1"].reason == REASON
                with pytest.raises(NotOurs):
                    scheduler.resume("127.0.0.1", "another reason")
                scheduler.resume("127.0.0.1", REASON)
        assert said == ["slurmrestd v0.0.38 cannot update nodes: scontrol does."]
        for token, sentence in (
            ("", "does not accept our token"),
            (str(bad), "slurmrestd answers 500"),
            (str(empty), "empty is empty"),
        ):
            refused = SlurmRest(SlurmPolicy(rest=place, token_file=token), 8)
            with closing(refused), pytest.raises(HoldfastError, match=sentence):
                SlurmScheduler(8, refused).look(0)
        monkeypatch.setenv("SLURM_JWT", made.strip().removeprefix("SLURM_JWT="))
        with closing(SlurmRest(SlurmPolicy(rest=place), 8)) as rest:
            assert set(rest.nodes()) == {"127.0.0.1"}


def test_a_token_file_is_private_and_a_regular_file(tmp_path: Path) -> None:
    token, pipe = tmp_path / "token", tmp_path / "pipe"
    token.write_text("secret")
    token.chmod(0o644)
    os.mkfifo(pipe, 0o600)
    for path, sentence in (
        (token, "Every user can read the token for slurmrestd"),
        (pipe, r"the token for slurmrestd: .* is not a regular file"),
        (tmp_path / "none", "No such file"),
    ):
        rest = SlurmRest(SlurmPolicy(rest="http://127.0.0.1:1", token_file=str(path)), 8)
        with closing(rest), pytest.raises(InputError, match=sentence):
            rest.nodes()


# ---- newer ones ------------------------------------------------------------------------------------------


def served(version: str) -> dict[str, Any]:
    """The paths of a slurmrestd of this version, which has an old API beside it."""
    return (
        {f"/slurm/{version}/{what}/": {"get": {}} for what in NEWER}
        | POST
        | {"/slurm/v0.0.9/nodes": {"get": {}}}
    )


@contextmanager
def newer(asked: list[tuple[str, str, Any]], paths: dict[str, Any] | None = None) -> Iterator[str]:
    """A stand-in for a slurmrestd that can update nodes. paths: what it has, which may change."""
    has = served("v0.0.40") if paths is None else paths

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            what = self.path.strip("/").rpartition("/")[2]
            if self.path == "/openapi/v3":
                self._answer({"paths": has})
            elif self.path in has:
                self._answer({what: NEWER[what]})
            else:
                self.send_error(404)

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append((self.path, self.headers["X-SLURM-USER-NAME"], body))
            is_known = self.path.endswith("gpu-1")
            self._answer({"errors": [] if is_known else [{"description": "Invalid node state"}]})

        def _answer(self, told: object) -> None:
            body = json.dumps(told).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *words: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join(WAIT_S)
        server.server_close()


def test_a_newer_one_updates_nodes_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JWT", "a.b.c")
    asked: list[tuple[str, str, Any]] = []
    said: list[str] = []
    with newer(asked) as place, closing(SlurmRest(SlurmPolicy(rest=place, user="jane"), 4)) as rest:
        scheduler = SlurmScheduler(4, rest, said.append)
        assert {name: node.is_out for name, node in seen(scheduler).items()} == {
            "gpu-1": True,
            "gpu-2": False,
        }
        scheduler.drain("gpu-1", REASON)
        scheduler.resume("gpu-1", REASON)
        with pytest.raises(HoldfastError, match="slurmrestd answers: Invalid node state"):
            scheduler.drain("gpu-2", REASON)
    path = "/slurm/v0.0.40/node/gpu-1"
    assert asked[:2] == [
        (path, "jane", {"state": ["DRAIN"], "reason": REASON}),
        (path, "jane", {"state": ["RESUME"]}),
    ]
    assert said == []


def test_a_slurmrestd_that_was_replaced_by_another_version_is_asked_what_it_has() -> None:
    paths = served("v0.0.40")
    with newer([], paths) as place, closing(SlurmRest(SlurmPolicy(rest=place), 4)) as rest:
        assert set(rest.nodes()) == {"gpu-1", "gpu-2"}
        paths.clear()
        paths.update(served("v0.0.42"))
        with pytest.raises(HoldfastError, match="slurmrestd answers 404"):
            rest.nodes()
        assert set(rest.nodes()) == {"gpu-1", "gpu-2"}
        assert rest.version == "v0.0.42"


def test_a_node_whose_registration_is_invalid_is_out() -> None:
    told = document({"nodes": [{"name": "gpu-1", "state": ["IDLE", "INVALID_REG"]}]})
    assert nodes_of(told, 4)["gpu-1"].is_out


def test_documents_of_newer_versions_are_read() -> None:
    told = document(NEWER)
    assert nodes_of(told, 4) == {
        "gpu-1": NodeView(name="gpu-1", gpus=8, is_out=True, reason=REASON, since_ns=1_793_520_000 * 10**9),
        "gpu-2": NodeView(name="gpu-2", gpus=4),
    }
    assert jobs_of(told) == (PlacedJob(job="7", name="pretrain", nodes=("gpu-1", "gpu-2")),)
    assert [(one.name, one.nodes, one.end_ns) for one in windows_of(told)] == [
        ("tide", ("gpu-2",), 2 * 10**9)
    ]


def test_the_newest_api_counts_and_one_that_lists_no_nodes_is_refused() -> None:
    many: dict[str, Any] = {f"/slurm/v0.0.{number}/nodes": {"get": {}} for number in (9, 38, 41, 40)}
    api = read_api(json.dumps({"paths": many | POST}).encode())
    assert (api.version, api.can_update) == ("v0.0.41", False)
    with pytest.raises(HoldfastError, match="no API that lists nodes"):
        read_api(b'{"paths": {"/slurmdb/v0.0.38/jobs": {}}}')


# ---- what is no answer -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("act", "sentence"),
    [
        (says("HTTP/1.1 200 OK\nContent-Length: 12", b'{"paths": {"'), "not the JSON that was expected"),
        (says("HTTP/1.1 500 No\nContent-Length: 0"), "slurmrestd answers 500: No"),
        (says("HTTP/1.1 200 OK\nContent-Length: 2", b"[]"), "not the JSON that was expected"),
        (is_silent, "does not answer: it did not answer in time"),
    ],
)
def test_bad_answers_are_one_sentence_and_nothing_is_done(act: Act, sentence: str) -> None:
    with hostile(act) as place:
        rest = SlurmRest(SlurmPolicy(rest=place), 8, QUICK)
        with closing(rest), pytest.raises(HoldfastError, match=sentence):
            SlurmScheduler(8, rest).look(SystemClock().now_ns())


def test_nobody_at_a_socket_is_told(tmp_path: Path) -> None:
    rest = SlurmRest(SlurmPolicy(rest=f"unix:{tmp_path}/socket"), 8)
    with closing(rest), pytest.raises(HoldfastError, match="does not answer"):
        rest.nodes()


@pytest.mark.parametrize("rest", ["ftp://head", "head:6820", "unix:socket", "unix:/a b"])
def test_a_place_has_its_form(rest: str) -> None:
    with pytest.raises(InputError, match=r"slurm\.rest"):
        read_policy(f'[slurm]\nrest = "{rest}"\n')


@pytest.mark.parametrize("user", ["jane doe", "jane\\nX-SLURM-USER-TOKEN: a", "zo\u00eb"])
def test_a_user_that_no_header_can_have_is_refused(user: str) -> None:
    with pytest.raises(InputError, match=r"slurm\.user"):
        read_policy(f'[slurm]\nuser = "{user}"\n')


def test_a_token_that_could_be_another_header_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JWT", "a\r\nX-SLURM-USER-NAME: root")
    rest = SlurmRest(SlurmPolicy(rest="http://127.0.0.1:9"), 8)
    with closing(rest), pytest.raises(InputError, match="invalid characters"):
        rest.nodes()


@pytest.mark.root
def test_a_user_without_a_name_is_told_to_give_one() -> None:
    """As in a container that runs under a number."""
    ask = (
        "import os\n"
        "from holdfast.control.policy import SlurmPolicy\n"
        "from holdfast.schedulers.slurm_rest import SlurmRest\n"
        "rest = SlurmRest(SlurmPolicy(rest='http://127.0.0.1:9'), 8)\n"
        f"os.setuid({NAMELESS})\n"
        "rest.nodes()"
    )
    done = subprocess.run(
        [sys.executable, "-c", ask],
        env={**os.environ, "SLURM_JWT": "a.b.c"},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert f"InputError: User {NAMELESS} has no name here" in done.stderr, done.stderr
