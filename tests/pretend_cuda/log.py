"""What a process did on the pretend GPUs, read from its log (tests/pretend_cuda/pretend.h)."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Training:
    """`gpus`: those of the machine that its process touched first in it. `nccl`: calls in order.
    Between the beginnings of two training steps that follow each other:
    `waits`: how often the process waited for the GPU; `launches`: how many kernels it launched.
    `draws`: tests/pretend_cuda/ledger.py.
    """

    gpus: list[int] = field(default_factory=list)
    nccl: list[str] = field(default_factory=list)
    draws: list[str] = field(default_factory=list)
    waits: list[int] = field(default_factory=list)
    launches: list[int] = field(default_factory=list)


@dataclass
class Process:
    """`gpus`: those that it touched before its first training."""

    rank: int | None = None
    gpus: list[int] = field(default_factory=list)
    trainings: list[Training] = field(default_factory=list)


def read(folder: Path) -> list[Process]:
    """Every process that used a GPU or logged its rank; those with a rank first, in rank order."""
    found = [_process(path) for path in folder.glob("log.*")]
    found = [one for one in found if one.gpus or one.rank is not None]
    return sorted(found, key=lambda one: (one.rank is None, one.rank))


def _process(path: Path) -> Process:
    process, waits = Process(), None
    launches, before = 0, 0
    for line in path.read_text(encoding="utf-8").splitlines():
        kind, _, text = line.partition(" ")
        if kind == "context":
            (process.trainings or [process])[-1].gpus.append(int(text))
        elif kind == "nccl":
            process.trainings[-1].nccl.append(text)
        elif kind == "wait" and waits is not None:
            waits += 1
        elif kind == "launches":
            launches = int(text)
        elif kind == "mark" and text.startswith("rank "):
            process.rank = int(text.split()[1])
        elif kind == "mark" and text.startswith("draw "):
            process.trainings[-1].draws.append(text.partition(" ")[2])
        elif kind == "mark" and text == "training":
            process.trainings.append(Training())
            waits = None
        elif kind == "mark":
            if waits is not None and text == "step":
                process.trainings[-1].waits.append(waits)
                process.trainings[-1].launches.append(launches - before)
            before = launches
            waits = 0 if text == "step" else None
    return process
