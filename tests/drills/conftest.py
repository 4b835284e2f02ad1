"""A Prometheus for the tests of this folder, installed and run like the servers of the whole suite."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from servers import daemon
from waiting import answers, free_port, until

RETENTION = "100y"
"""A scenario's time is not the machine's: nothing is to be thrown away for its age."""


@pytest.fixture(scope="session")
def promtool(need: Callable[..., None]) -> str:
    """The command `promtool`; the package that has it has Prometheus as well."""
    need("prometheus")
    return "promtool"


@pytest.fixture
def prometheus(promtool: str) -> Callable[[Path], AbstractContextManager[str]]:
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
        with daemon(command, blocks):
            log = blocks / "prometheus.log"
            until(
                lambda: answers(f"http://127.0.0.1:{port}/-/ready"), lambda: log.read_text(encoding="utf-8")
            )
            yield f"http://127.0.0.1:{port}"

    return serve
