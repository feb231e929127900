"""The processes of `bench data`: one that has imported everything, and a child of it for each
loader, so that peak memory and processor time are the loader's own.

The first line of stdin is the job; its data set is written if need be. After that each line is a
command: {"start": name, "loader", "world"}, {"turn": name, "seconds"} for speed, or {"turn": name,
"batches"} for memory. Each is answered by a line.
"""

from __future__ import annotations

import json
import multiprocessing
import resource
import sys
import time
from typing import Any

from robomimic_ddp import env

_STILL_SECONDS, _STILL_LOOKS, _LONGEST_WAIT = 0.005, 3, 10.0


def main() -> None:
    """Answers the lines of stdin until it ends."""
    job = json.loads(sys.stdin.readline())
    fork = multiprocessing.get_context("fork")
    _import_everything()
    _in_child(fork, _prepare, job)
    tell({"ready": True})
    children: dict[str, Any] = {}
    for line in sys.stdin:
        command = json.loads(line)
        name = command.get("start") or command["turn"]
        if "start" in command:
            ours, theirs = fork.Pipe()
            words = (theirs, job, command["loader"], command["world"])
            process = fork.Process(target=_measure, args=words, daemon=True)
            process.start()
            theirs.close()
            children[name] = (process, ours)
        else:
            children[name][1].send(command)
        tell(_answer(name, *children[name]))
    for process, _ in children.values():
        process.kill()


def _prepare(job: dict) -> None:
    from robomimic_ddp.bench.data_set import DataJob, write_if_missing

    write_if_missing(DataJob(**job))


def _in_child(fork: Any, target: Any, *args: Any) -> None:
    """A process that has run TensorFlow must not fork, so what runs it is a child."""
    process = fork.Process(target=target, args=args)
    process.start()
    process.join()
    if process.exitcode:
        raise SystemExit(process.exitcode)


def _import_everything() -> None:
    """Starts no thread of TensorFlow's: children may follow."""
    import torch

    from robomimic_ddp.rlds import dataset  # noqa: F401
    from robomimic_ddp.rlds.tf_import import import_tensorflow, import_tensorflow_datasets

    import_tensorflow(), import_tensorflow_datasets()
    torch.set_num_threads(1)


def _answer(name: str, process: Any, pipe: Any) -> dict:
    try:
        return pipe.recv()
    except EOFError:
        process.join()
        return {"error": f"the process of {name} ended with code {process.exitcode}"}


def _measure(pipe: Any, job: dict, loader: str, world: int) -> None:
    """In a child: one loader, and a turn of it for each message."""
    from robomimic_ddp.bench.data_loaders import LOADERS
    from robomimic_ddp.bench.data_set import DataJob

    began = time.perf_counter()
    stream = LOADERS[loader](DataJob(**job), world)
    next(stream.batches)
    pipe.send({"first_batch_seconds": time.perf_counter() - began})
    while True:
        command = pipe.recv()
        if "batches" in command:
            pipe.send(take_batches(stream, command["batches"]))
        else:
            pipe.send(take_turn(stream, command["seconds"]))


def take_turn(stream: Any, seconds: float) -> dict[str, float]:
    """Batches for at least `seconds`, by the clock and of the processor.

    What was made ahead is taken first, untimed. Processor time is counted from stillness to
    stillness: what is made ahead at the end was taken at the beginning.
    """
    _wait_until_still()
    cpu = _cpu_seconds()
    for _ in range(stream.ahead):
        next(stream.batches)
    began, batches = time.perf_counter(), 0
    while not batches or time.perf_counter() - began < seconds:
        next(stream.batches)
        batches += 1
    wall = time.perf_counter() - began
    looking = _wait_until_still()
    return {
        "wall": wall,
        "frames": batches * stream.frames_per_batch,
        "cpu": _cpu_seconds() - cpu - looking,
        "cpu_frames": (batches + stream.ahead) * stream.frames_per_batch,
        "decoded_over_delivered": stream.decoded_over_delivered(),
        "peak_rss_mb": env.peak_memory() / 1e6,
    }


def take_batches(stream: Any, count: int) -> dict[str, float]:
    """`count` batches, and the memory that is held then."""
    for _ in range(count):
        next(stream.batches)
    return {"rss_mb": env.resident_memory() / 1e6, "passes": stream.passes()}


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _wait_until_still() -> float:
    """Until this process's threads have stopped working ahead: waiting for a core is no rest.

    Returns the processor time, in seconds, that looking for it took.
    """
    began = time.thread_time()
    deadline, looks = time.monotonic() + _LONGEST_WAIT, 0
    while looks < _STILL_LOOKS and time.monotonic() < deadline:
        time.sleep(_STILL_SECONDS)
        looks = 0 if env.has_running_threads() else looks + 1
    return time.thread_time() - began


def tell(answer: dict[str, Any]) -> None:
    """A line for the process that asks."""
    print(f"bench {json.dumps(answer)}", flush=True)


if __name__ == "__main__":
    main()
