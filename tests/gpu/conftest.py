"""The suite for a machine with a GPU: `make test-gpu`. Members pose as hosts, so one GPU is enough.

It stands apart from tests/conftest.py, which needs what such a machine may not have.
"""

from collections.abc import Iterator

import pytest
import torch
from forked_cluster import Cluster
from forked_ranks import Ranks

NO_GPU = "The GPU suite needs a machine with at least one GPU that torch can use; this one has none."


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--without-gpu",
        action="store_true",
        help="Try the suite itself on a CPU, over TCP: no test of NCCL.",
    )


def pytest_configure(config: pytest.Config) -> None:
    if not config.getoption("--without-gpu") and not torch.cuda.is_available():
        pytest.exit(NO_GPU, returncode=1)


@pytest.fixture(scope="session")
def has_gpu(pytestconfig: pytest.Config) -> bool:
    """False only where the suite itself is tried."""
    return not pytestconfig.getoption("--without-gpu")


@pytest.fixture(scope="session")
def ranks(has_gpu: bool) -> Ranks:
    return Ranks("nccl" if has_gpu else "tcp")


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    yield cluster
    cluster.close()
