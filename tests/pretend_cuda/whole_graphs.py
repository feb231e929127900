"""Compiles the diffusion policy's nets on a pretended GPU, and looks at what came of it."""

from __future__ import annotations

import json

from tests.hosts import python, require_clean
from tests.pretend_cuda.log import read


def require_whole_graphs(gpus, host, config, tmp_path, kind, triton="none", breaks=()):
    """Compiles, and asserts that no graph breaks but where one of the words `breaks` is in the
    reason, nothing of a graph is on the CPU, all of it fits CUDA graphs, and a step waits for the
    loss and the gradients' norm alone.
    """
    report = tmp_path / "report.json"
    added = {**gpus, "PRETEND_CUDA_LOG": str(tmp_path / "log"), "CUDA_VISIBLE_DEVICES": "0"}
    words = ("tests.pretend_cuda.compiled", report, kind, triton, config)
    require_clean(python(host, *words, added=added, timeout=800.0))
    compiled = json.loads(report.read_text())
    assert compiled.pop("kernels") > 50
    reasons = compiled.pop("breaks")
    assert [why for why in reasons if not any(word in why for word in breaks)] == []
    assert compiled == {
        "graphs": 4,  # forward and backward of both
        "on_cpu": [],
        "in_cuda_graphs": 4 if kind == "reduce-overhead" else 0,
        "not_in_them": 0,
    }
    process = next(process for process in read(tmp_path) if process.rank is not None)
    _, *compiled = process.trainings[0].waits  # the first step compiles
    assert compiled == [2, 2]
