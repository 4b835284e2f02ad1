"""The cluster in memory, for the tests of the control plane."""

import pytest
from memory_cluster import Cluster


@pytest.fixture(scope="session")
def cluster() -> type[Cluster]:
    return Cluster
