"""A process of `bench step`: the host's diffusion policy, an answer for each line of stdin.

Run by itself it uses the host as it is; under `robomimic-ddp run`, with the edits in memory. On
several ranks each is such a process, and all get the same lines:

step [N]: a step, timed (the mean of N); local: a step whose gradients stay on the rank; profile: a
step, and when all-reduces and a GPU's kernels ran; memory: bytes of tensors by kind; parts: a step,
and where its backward pass began and ended; samples N: batches of N samples from now on; sent:
bytes that all-reduces would be given, by ddp.comm; reduce N: an all-reduce of N bytes, timed;
rollout N H: N episodes of H steps over all ranks, timed.
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import ExitStack, nullcontext
from functools import partial
from typing import Any

from robomimic_ddp import env


def main(job: dict[str, Any]) -> None:
    """Answers until stdin ends. `job`: batch, threads; down_dims (empty: the host's), cameras of
    so many pixels, device; loads: whether batches come from a DataLoader; variant, rank and world
    on several ranks; core: the only one to run on.
    """
    if job.get("core") is not None:
        os.sched_setaffinity(0, {job["core"]})
    import torch

    from robomimic_ddp.bench import hand_loops, loading, loops, policy

    torch.set_num_threads(job["threads"])
    torch.manual_seed(1)
    device = job.get("device", "cpu")
    if device != "cpu":
        torch.backends.cudnn.benchmark = True  # as the host's get_torch_device has it
    config = policy.make_config(job)
    by_hand = hand_loops.BY_HAND.get(job.get("variant"))
    if not by_hand:
        import robomimic.scripts.train  # noqa: F401 - the host's imports are not the seams'
    seams = Stopwatch()
    with ExitStack() as stack:
        with seams:
            stack.enter_context(nullcontext() if by_hand else _run(config, device))
        model = policy.make_model(config, job, device)
        samples = job["batch"] if by_hand else _samples_of_step(job)
        batch = policy.make_batch(config, job, samples)
        loader = loading.make_loader(batch, job, _is_edited()) if job.get("loads") else None
        if device != "cpu" and _is_edited():
            batch = loading.pinned(batch)
        parameters = sum(p.numel() for p in model.nets.parameters() if p.requires_grad)
        model.bench_ranks = job.get("world", 1)
        with seams:
            epochs = iter(range(1) if by_hand else _epochs(model))
            stack.callback(getattr(epochs, "close", lambda: None))
            next(epochs)
        model.set_train()
        if _is_edited():
            stack.enter_context(_watched(model))
        loop = (by_hand or loops.HostLoop)(model, batch)
        loop.loaded = None if loader is None else loading.endless(loader)
        if by_hand:
            torch.manual_seed(1 + job["rank"])
        told = {"seams": seams.wall, "seams_cpu": seams.cpu}
        _tell({"parameters": parameters, "samples": samples, **told})
        answers = _answers(loop, config, job)
        for line in sys.stdin:
            word, *numbers = line.split()
            _tell(answers[word](*map(int, numbers)))
    # What follows an epoch is not measured.


class Stopwatch:
    """Seconds of the blocks that it has been around, by the clock and of the processor."""

    wall = cpu = 0.0

    def __enter__(self) -> None:
        self._began = time.perf_counter(), time.process_time()

    def __exit__(self, *_: Any) -> None:
        self.wall += time.perf_counter() - self._began[0]
        self.cpu += time.process_time() - self._began[1]


def _answers(loop: Any, config: Any, job: dict[str, Any]) -> dict[str, Any]:
    from robomimic_ddp.bench import parts, profiling, reaching, tensors

    return {
        "step": partial(take_step, loop, True),
        "local": partial(take_step, loop, False),
        "profile": partial(profiling.profiled, loop),
        "memory": lambda: tensors.tensor_bytes(loop.tensors()),
        "parts": partial(parts.step_in_parts, loop),
        "samples": partial(_change_batch, loop, config, job),
        "sent": partial(parts.bytes_sent, loop.model.nets),
        "reduce": parts.all_reduce,
        "rollout": partial(reaching.roll_out, loop.model),
    }


def _is_edited() -> bool:
    import robomimic.scripts.train as host

    return getattr(host.train, "is_distributed", False)


def _run(config: Any, device: str) -> Any:
    if not _is_edited():
        return nullcontext()
    from robomimic_ddp import run

    return run.start(config, use_cuda=device != "cpu")


def _epochs(model: Any) -> Any:
    if not _is_edited():
        return range(1, 2)
    from robomimic_ddp import api

    return api.epochs(range(1, 2), model)


def _watched(model: Any) -> Any:
    """Reads a step's numbers when the host's edited `run_epoch` would."""
    from robomimic_ddp import observing

    return observing.watching(model, [])


def _samples_of_step(job: dict[str, Any]) -> int:
    """What a train loader would deliver for a step: more than a batch where it accumulates."""
    if not _is_edited():
        return job["batch"]
    from robomimic_ddp import run

    return run.current().plan.samples_per_rank


def _change_batch(loop: Any, config: Any, job: dict[str, Any], samples: int) -> dict[str, int]:
    from robomimic_ddp.bench import policy

    loop.batch, loop.loaded = policy.make_batch(config, job, samples), None
    return {"samples": samples}


def take_step(loop: Any, reduces: bool = True, steps: int = 1) -> dict[str, float]:
    """Collective on several ranks: `steps` steps, timed together; seconds of one."""
    from robomimic_ddp.bench import loops

    with ExitStack() as undo:
        if not reduces:
            loops.without_reduction(loop, undo)
        loops.finish(loop)
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(steps):
            found = loop.step()
        loops.finish(loop)
        loss = found["Loss"] if isinstance(found, dict) else found
        return {
            "wall": (time.perf_counter() - wall) / steps,
            "cpu": (time.process_time() - cpu) / steps,
            "loss": loss,
            "peak_rss_mb": env.peak_memory() / 1e6,
        }


def _tell(answer: dict[str, Any]) -> None:
    print(f"bench {json.dumps(answer)}", flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
