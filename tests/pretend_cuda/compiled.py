"""Compiles both nets of the diffusion policy for a pretend GPU as `ddp.compile` does, takes steps,
and writes what Inductor made of them.

    python -m tests.pretend_cuda.compiled REPORT KIND TRITON CONFIG

Inductor generates its code for an sm_90, in bf16. TRITON is "triton", which compiles the kernels
with its ptxas and loads them, or "none". REPORT: see `Compiled.report`.
"""

from __future__ import annotations

import ctypes
import functools
import json
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch._dynamo
import torch._inductor.compile_fx
import torch._inductor.config
from torch._dynamo.utils import counters
from torch._inductor.codecache import PyCodeCache

from robomimic_ddp.config.options import Options
from robomimic_ddp.training.presets import prepare
from robomimic_ddp.training.step import compile
from tests.parity import training

STEPS = 3
_ON_CPU = ("cpu", ".item(", "copy_(", "cpp_")


class Kernel:
    """Stands for one of Triton's."""

    def run(self, *_: Any, **__: Any) -> None:
        pass


class Compiled:
    """Records what is compiled, until `undo` is closed."""

    def __init__(self, with_triton: bool, undo: ExitStack) -> None:
        self.codes: list[str] = []
        self.in_cuda_graphs = 0
        replaced: list[tuple] = [
            (PyCodeCache, "write", functools.partial(self._write, PyCodeCache.write)),
            (torch._inductor.compile_fx, "cudagraphify", self._take),
            (compile, "why_not", lambda *_: None),  # compiles a graph as well
        ]
        if not with_triton:
            from torch._inductor.async_compile import AsyncCompile  # torch 2.0 has none

            replaced.append((AsyncCompile, "triton", lambda *_, **__: Kernel()))
        for owner, name, new in replaced:
            undo.enter_context(mock.patch.object(owner, name, new))

    def _write(self, write: Any, code: str, *rest: Any) -> Any:
        """Keep the code of a graph, which Inductor writes to a file."""
        self.codes.append(code)
        return write(code, *rest)

    def _take(self, graph: Any, *_: Any, **__: Any) -> Any:
        self.in_cuda_graphs += 1
        return graph

    def report(self) -> dict[str, Any]:
        """graphs: with code. kernels: in that code. on_cpu: lines of it, outside kernels, that
        read a number or leave the GPU. breaks: reasons for which a graph was cut. in_cuda_graphs:
        graphs that Inductor would give to CUDA graphs; not_in_them: those that it would not.
        """
        lines = [line for code in self.codes for line in code.splitlines()]
        calls = [line for code in self.codes for line in code.split("def call(")[1].splitlines()]
        return {
            "graphs": len(self.codes),
            "kernels": sum("async_compile.triton(" in line for line in lines),
            "on_cpu": [line for line in calls if any(word in line for word in _ON_CPU)],
            "breaks": list(counters["graph_break"]),
            "in_cuda_graphs": self.in_cuda_graphs,
            "not_in_them": counters["inductor"]["cudagraph_skips"],
        }


def main() -> None:
    """Take some steps and mark them in this process's log."""
    report, kind, triton, settings = sys.argv[1:]
    mark = ctypes.CDLL(None).pretend_mark
    torch.backends.cudnn.enabled = False  # it is not pretended
    with ExitStack() as undo:
        alone = {"force_disable_caches": True, "compile_threads": 1}
        undo.enter_context(torch._inductor.config.patch(alone))
        compiled = Compiled(triton == "triton", undo)
        job = training.build(settings, "cuda")
        nets = list(job.model.nets["policy"].values())
        line = prepare(job.model, Options(compile=kind, precision="bf16"), nets, undo).line
        assert f"compiled ({kind}): training forward of 2 net(s)" in line, line
        job.model.set_train()
        batch = next(iter(torch.utils.data.DataLoader(**job.loader_arguments)))
        mark(b"rank 0")
        mark(b"training")
        for _ in range(STEPS):
            mark(b"step")
            training.one_step(job.model, batch)
        mark(b"step")
        Path(report).write_text(json.dumps(compiled.report()))


if __name__ == "__main__":
    main()
