"""GPUs, shared memory, limits, disk, cores, the network of this node."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from robomimic_ddp.commands.doctor.findings import (
    FAIL,
    OK,
    WARN,
    Context,
    Finding,
    judged,
    output_of,
)
from robomimic_ddp.config import machine, memory
from robomimic_ddp.config.plan import workers_of_share
from robomimic_ddp.errors import OptionError

GIB = 2**30
SHARED_MEMORY = Path("/dev/shm")
_LEAST_SHARED_MEMORY = GIB
_LEAST_OPEN_FILES = 4096
_LEAST_DISK = 10 * GIB
_NONE_VISIBLE = "No CUDA GPUs are available"
"""torch's error if the driver works and shows no device."""
CONTAINER = Path("/.dockerenv")


def check_gpus(context: Context) -> Iterator[Finding]:
    torch, gpus = context.torch, context.gpus
    listed = sum(line.startswith("GPU ") for line in _nvidia_smi("--list-gpus"))
    for index, gpu in enumerate(gpus):
        free, memory = gpu.get("free", 0), gpu["memory"]
        found = f"GPU {index}: {gpu['name']}, {free / GIB:.1f} of {memory / GIB:.1f} GiB free"
        if "error" in gpu:
            found = f"GPU {index}: {gpu['name']}: {gpu['error']}"
            yield Finding("gpus", FAIL, found, "Restart the node or exclude the device.")
        else:
            remedy = "Other processes use it (nvidia-smi); end them or choose other GPUs."
            yield judged("gpus", free >= memory / 2, found, remedy)
    if len({gpu["name"] for gpu in gpus}) > 1:
        remedy = "Every step waits for the slowest; choose equal ones by CUDA_VISIBLE_DEVICES."
        yield Finding("gpus", WARN, "the GPUs are of different kinds", remedy)
    lonely = [index for index, gpu in enumerate(gpus) if len(gpus) > 1 and not gpu["peers"]]
    if lonely:
        found = f"GPU {lonely[0]} cannot read another's memory directly (peer access)"
        yield Finding("gpus", WARN, found, "All-reduces go through the CPU: slower, not wrong.")
    query = ("--query-compute-apps=pid,used_memory", "--format=csv,noheader")
    others = "; ".join(_nvidia_smi(*query)) if gpus else ""
    if others:
        found = f"other processes compute on this node's GPUs: {others}"
        remedy = "Two jobs on one GPU share its time and memory: end them, or choose other GPUs."
        yield Finding("gpus", WARN, found, remedy)
    if not gpus and listed and "error" not in torch:
        visible = context.variables.get("CUDA_VISIBLE_DEVICES")
        why = torch.get("cuda_error") or "; ".join(torch.get("warnings", ()))
        remedy = "Install a torch whose CUDA is not newer than the driver's (nvidia-smi shows it)."
        if visible is not None and (not why or _NONE_VISIBLE in why):
            why = f"CUDA_VISIBLE_DEVICES={visible!r} hides them"
            remedy = "unset CUDA_VISIBLE_DEVICES, or name in it the GPUs that nvidia-smi lists."
        found = f"{listed} GPU(s) here, but torch sees none: {why or 'a build without CUDA'}"
        yield Finding("gpus", FAIL, found, remedy)
    elif "error" in torch:
        found = f"torch cannot say what it sees; nvidia-smi lists {listed} GPU(s)"
        yield Finding("gpus", OK, found)
    elif not gpus:
        yield Finding("gpus", OK, "no GPU: training runs on the CPU, ranks meet over gloo")


def _nvidia_smi(*query: str) -> list[str]:
    """The lines that it prints; none where it cannot run."""
    code, text = output_of("nvidia-smi", *query)
    return text.strip().splitlines() if code == 0 else []


def check_driver(context: Context) -> Iterator[Finding]:
    """torch's CUDA against the driver's: compatible within one major version."""
    build, driver = context.torch.get("cuda_build"), context.torch.get("driver_cuda")
    if not build or not driver:
        return
    found = f"torch is built for CUDA {build}, the driver knows CUDA {driver}"
    is_fine = int(build.split(".")[0]) <= int(driver.split(".")[0])
    remedy = f"Update the driver, or install a torch that is built for CUDA {driver} or older."
    yield judged("driver", is_fine, found, remedy, FAIL)


def check_backends(context: Context) -> Iterator[Finding]:
    torch = context.torch
    if "error" in torch:
        return
    if context.gpus and not torch["nccl"]:
        remedy = "Install a Linux build of torch with CUDA; gloo moves gradients over the CPU."
        yield Finding("backends", WARN, "torch is built without NCCL", remedy)
    else:
        names = [name for name in ("nccl", "gloo") if torch[name]]
        yield Finding("backends", OK, f"torch is built with {' and '.join(names)}")


def check_shared_memory(_: Context) -> Iterator[Finding]:
    if not SHARED_MEMORY.is_dir():
        return
    size = shutil.disk_usage(SHARED_MEMORY)
    found = f"{SHARED_MEMORY}: {size.free / GIB:.1f} of {size.total / GIB:.1f} GiB free"
    where = "Docker: --shm-size=16g or --ipc=host. " if CONTAINER.exists() else ""
    remedy = f"{where}Data workers and NCCL share tensors through it (Bus error)."
    yield judged("shared memory", size.free >= _LEAST_SHARED_MEMORY, found, remedy)


def check_limits(_: Context) -> Iterator[Finding]:
    try:
        import resource
    except ImportError:  # Windows has none
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = f"at most {soft} open files (hard limit {hard})"
    remedy = f"ulimit -n {_LEAST_OPEN_FILES} (Too many open files, with many data workers)"
    yield judged("limits", not 0 <= soft < _LEAST_OPEN_FILES, found, remedy)


def check_disk(context: Context) -> Iterator[Finding]:
    train = context.section("train")
    folder = Path(os.path.expanduser(str(train.get("output_dir") or "."))).absolute()
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    size = shutil.disk_usage(nearest)
    found = f"{nearest}: {size.free / GIB:.0f} GiB free for checkpoints"
    if not os.access(nearest, os.W_OK):
        yield Finding("disk", FAIL, f"{nearest}: not writable", "Name another train.output_dir.")
    else:
        remedy = "Each checkpoint of a 67 M policy takes about 1 GB."
        yield judged("disk", size.free >= _LEAST_DISK, found, remedy)


def check_cores(context: Context) -> Iterator[Finding]:
    cores = machine.usable_cores()
    ranks, key = context.world, "ddp.workers"
    workers = context.section("train").get("num_data_workers") or 0
    try:
        asked = context.options().workers
    except OptionError:  # check_config and check_variables report it
        asked = "config"
    if asked == "config":
        key = "train.num_data_workers"
    else:
        workers = workers_of_share(asked, cores // ranks)
    if not isinstance(workers, int):  # check_config reports it
        return
    found = f"{cores} CPU core(s) for {ranks} rank(s) with {workers} data worker(s) each"
    remedy = f"Use at most {max(0, cores // ranks - 1)} {key}, or fewer ranks."
    yield judged("cores", ranks * (1 + workers) <= cores, found, remedy)


def check_memory(context: Context) -> Iterator[Finding]:
    """What a policy of that many parameters needs, against the smallest GPU."""
    smallest = min((gpu["memory"] for gpu in context.gpus), default=None)
    shards = max(2, context.world)
    found = memory.describe(context.parameters, shards, smallest)
    is_fine = smallest is None or memory.fits(context.parameters, 1, smallest)
    yield judged("memory", is_fine, found, "docs/fsdp.md says when and how to shard.")
