"""Fixtures: a Slurm for each test (it is up in two seconds), and its jobs."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts import Host
from tests.slurm.cluster import Cluster, missing


@pytest.fixture
def cluster(host_copy: Host) -> Iterator[Cluster]:
    if reason := missing():
        pytest.skip(reason)
    # pytest's folders are too deep for the path of a socket.
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder:
        cluster = Cluster(Path(folder), host_copy)
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()
