"""A Prometheus for the tests of this folder, installed and run like the servers of the whole suite."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from waiting import answers, free_port, until

RETENTION = "100y"
"""A scenario's time is not the machine's: nothing is to be thrown away for its age."""


@pytest.fixture(scope="session")
def servers(request: pytest.FixtureRequest) -> Any:
    """What the suite's own conftest installs and runs servers with."""
    return request.config.pluginmanager.get_plugin(str(Path(__file__).parents[1] / "conftest.py"))


@pytest.fixture(scope="session")
def promtool(servers: Any) -> str:
    """The command `promtool`; the package that has it has Prometheus as well."""
    try:
        if not servers.shutil.which("promtool"):
            servers._apt_install("prometheus")
    except servers._Unavailable as reason:
        pytest.skip(f"no Prometheus: {reason}")
    return "promtool"


@pytest.fixture
def prometheus(servers: Any, promtool: str) -> Callable[[Path], AbstractContextManager[str]]:
    """Serves the blocks in a directory, at the URL that it gives."""

    @contextmanager
    def serve(blocks: Path) -> Iterator[str]:
        port = free_port()
        settings = blocks / "prometheus.yml"
        settings.write_text("global: {}\n", encoding="utf-8")
        command = [
            "prometheus",
            f"--config.file={settings}",
            f"--storage.tsdb.path={blocks}",
            f"--storage.tsdb.retention.time={RETENTION}",
            f"--web.listen-address=127.0.0.1:{port}",
        ]
        with servers._daemon(command, blocks):
            log = blocks / "prometheus.log"
            until(
                lambda: answers(f"http://127.0.0.1:{port}/-/ready"), lambda: log.read_text(encoding="utf-8")
            )
            yield f"http://127.0.0.1:{port}"

    return serve
