"""The pretend CUDA, built once, and jobs on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.hosts import Host, Result, torchrun
from tests.pretend_cuda import build
from tests.pretend_cuda.log import Process, read

Job = Callable[..., tuple[Result, list[Process]]]


@pytest.fixture(scope="session")
def gpus(once: Callable[..., Path]) -> dict[str, str]:
    """Variables under which a program finds two GPUs."""
    if build.why_not():
        pytest.skip(build.why_not())
    folder = once("pretend-cuda", build.build)
    return {**build.variables(folder), "PRETEND_CUDA_GPUS": "2"}


@pytest.fixture(scope="module")
def job(gpus: dict[str, str], host_copy: Host, tmp_path_factory: pytest.TempPathFactory) -> Job:
    """`job(module, *arguments, added=variables, start=torchrun)`: (result, what each process did)
    for two ranks, or one plain process with `start=python`.
    """

    def run(
        module: str,
        *arguments: object,
        added: Mapping[str, str] | None = None,
        start: Callable[..., Result] = torchrun,
    ) -> tuple[Result, list[Process]]:
        logs = tmp_path_factory.mktemp("logs")
        variables = {**gpus, "PRETEND_CUDA_LOG": str(logs / "log")}
        variables = {"CUDA_VISIBLE_DEVICES": "0,1", **variables, **(added or {})}
        words = ["tests.pretend_cuda.job", module, *arguments]
        result = start(host_copy, *words, added=variables, timeout=500.0)
        return result, read(logs)

    return run
