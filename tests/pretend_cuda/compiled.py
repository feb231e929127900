"""Compiles both nets of the diffusion policy for a pretend GPU as `ddp.compile` does, takes steps,
and writes what Inductor made of them.

    python -m tests.pretend_cuda.compiled REPORT KIND PRECISION CONFIG...

Inductor generates its code for an sm_90; Triton compiles none of the kernels, and none is started.
REPORT: of each config, see `Compiled`.
"""

from __future__ import annotations

import ctypes
import json
import re
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
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.graph import GraphLowering

from robomimic_ddp.config.options import Options
from robomimic_ddp.distributed import host_algo
from robomimic_ddp.training.step import prepare
from tests.parity import training

STEPS = 3
_COPY = re.compile(r"\.cpu\(|device='cpu'|_cpu\(|\.to\(|\.item\(|_local_scalar|copy_\(|cpp_fused")


class Kernel:
    """Stands for one of Triton's."""

    started = 0

    def run(self, *_: Any, **__: Any) -> None:
        Kernel.started += 1


class Compiled:
    """graphs: with code. kernels: in that code; started: in all steps. copies: lines of it that
    move a tensor between devices, or read one. breaks: reasons for which a graph was cut.
    in_cuda_graphs: graphs that Inductor gives to CUDA graphs; not_in_them: why not.
    """

    def __init__(self) -> None:
        self.codes: list[str] = []
        self.in_cuda_graphs = 0

    def watch(self, undo: ExitStack) -> None:
        """Records what is compiled, until `undo` is closed."""
        for owner, name, new in (
            (GraphLowering, "save_output_code", self.codes.append),
            (AsyncCompile, "triton", lambda *_, **__: Kernel()),
            (torch._inductor.compile_fx, "cudagraphify", self.take),
        ):
            undo.enter_context(mock.patch.object(owner, name, new))

    def take(self, graph: Any, *_: Any, **__: Any) -> Any:
        self.in_cuda_graphs += 1
        return graph

    def report(self) -> dict[str, Any]:
        lines = [line.strip() for code in self.codes for line in code.splitlines()]
        return {
            "graphs": len(self.codes),
            "kernels": sum("async_compile.triton(" in line for line in lines),
            "started": Kernel.started,
            "copies": [line for line in lines if _COPY.search(line)],
            "breaks": list(counters["graph_break"]),
            "in_cuda_graphs": self.in_cuda_graphs,
            "not_in_them": counters["inductor"]["cudagraph_skips"],
        }


def train(settings: str, options: Options) -> dict[str, Any]:
    mark, compiled = ctypes.CDLL(None).pretend_mark, Compiled()
    torch._dynamo.reset()
    counters.clear()
    Kernel.started = 0
    with ExitStack() as undo:
        compiled.watch(undo)
        job = training.build(settings, torch.device("cuda"))
        nets = [net for _, net in host_algo.named_roots(job.model)]
        policy = [*nets[0]["policy"].values()] if hasattr(nets[0], "keys") else nets
        line = prepare(job.model, options, policy, undo).line
        assert f"compiled ({options.compile}): training forward of 2 net(s)" in line, line
        job.model.set_train()
        loader = torch.utils.data.DataLoader(**job.loader_arguments)
        mark(b"training")
        for batch in [next(iter(loader))] * STEPS:
            mark(b"step")
            training.one_step(job.model, batch)
        mark(b"end")
        return compiled.report()


def main() -> None:
    report, kind, precision, *configs = sys.argv[1:]
    torch.backends.cudnn.enabled = False  # it is not pretended
    ctypes.CDLL(None).pretend_mark(b"rank 0")
    options = Options(compile=kind, precision=precision)
    with torch._inductor.config.patch(force_disable_caches=True):
        found = [train(settings, options) for settings in configs]
    Path(report).write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
