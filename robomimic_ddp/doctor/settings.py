"""Variables that lie, the host in use, and the config of a job."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from robomimic_ddp import API_VERSION, env, options
from robomimic_ddp.doctor.findings import FAIL, OK, WARN, Context, Finding
from robomimic_ddp.env import LaunchEnv
from robomimic_ddp.errors import RobomimicDDPError
from robomimic_ddp.plan import make_plan

SLOWING = {
    "CUDA_LAUNCH_BLOCKING": "every kernel is waited for; good for finding errors only",
    "TORCH_DISTRIBUTED_DEBUG": "DETAIL checks every collective; good for finding errors only",
    "NCCL_P2P_DISABLE": "GPUs exchange gradients through the CPU's memory",
    "NCCL_SHM_DISABLE": "ranks of a node talk over the network",
    "NCCL_IB_DISABLE": "InfiniBand is off: nodes talk over Ethernet",
    "NCCL_P2P_LEVEL": "it limits which GPUs talk directly; NCCL's own choice is usually right",
}
"""Variables of the well-known remedies, which stay set after their cause is gone."""
_HARMLESS = ("", "0", "OFF", "INFO")


def check_variables(context: Context) -> Iterator[Finding]:
    variables = context.variables
    try:
        launch = env.read_launch_env(variables)
        options.resolve(environment=launch.option_texts)
    except RobomimicDDPError as error:
        yield Finding("variables", FAIL, str(error), "Unset or correct them.")
    else:
        if launch.launched:
            found = f"RANK={launch.rank} and WORLD_SIZE={launch.world_size} are set in this shell"
            remedy = "A plain python would believe to be one rank of a job: unset them."
            yield Finding("variables", WARN, found, remedy)
        else:
            yield Finding("variables", OK, "no launcher's variables are left over in this shell")
    for name, effect in SLOWING.items():
        if variables.get(name, "").upper() not in _HARMLESS:
            found = f"{name}={variables[name]}: {effect}"
            yield Finding("variables", WARN, found, f"unset {name}, unless it is still needed")


def check_host(_: Context) -> Iterator[Finding]:
    """The robomimic that this Python imports, and whether it is edited for our API."""
    try:
        spec = importlib.util.find_spec("robomimic")
    except (ImportError, ValueError):
        spec = None
    places = [Path(place) for place in spec.submodule_search_locations or ()] if spec else []
    if not places:
        remedy = "Install the host in this environment (pip install -e ~/my_robomimic)."
        yield Finding("host", WARN, "no robomimic can be imported here", remedy)
        return
    folder = places[0]
    calls, versions = _edits(folder)
    if not calls:
        remedy = f"robomimic-ddp apply {folder.parent}"
        yield Finding("host", WARN, f"{folder} is not edited: one device only", remedy)
    elif versions != {API_VERSION}:
        found = f"{folder} is edited for API {sorted(versions)}, this package has {API_VERSION}"
        remedy = f"robomimic-ddp revert {folder.parent}, then apply"
        yield Finding("host", FAIL, found, remedy)
    else:
        yield Finding("host", OK, f"{folder} is edited ({calls} files, API {API_VERSION})")


def _edits(folder: Path) -> tuple[int, set[int]]:
    """How many files of the host call us, and for which versions of our API."""
    calls, versions = 0, set()
    for part in ("algo", "scripts", "utils"):
        for path in sorted((folder / part).glob("*.py")):
            text = path.read_text(encoding="utf-8", errors="replace")
            calls += "robomimic_ddp" in text
            versions |= {int(number) for number in re.findall(r"api_version=(\d+)", text)}
    return calls, versions


def check_config(context: Context) -> Iterator[Finding]:
    config = context.config
    if config is None:
        return
    train = config.get("train") or {}
    try:
        resolved = options.resolve(file=config.get("ddp") or {})
        world = context.ranks or len(context.gpus) or 1
        plan = make_plan(
            LaunchEnv(True, 0, world, 0, world),
            resolved,
            visible_gpus=len(context.gpus),
            use_cuda=bool(context.gpus),
            batch_size=train.get("batch_size", 1),
            data_workers=train.get("num_data_workers") or 0,
            cores=env.usable_cores(),
        )
    except RobomimicDDPError as error:
        yield Finding("config", FAIL, str(error), "Correct it in the config.")
        return
    yield Finding(
        "config",
        OK,
        f"{plan.batch_per_rank} samples per rank x {world} = {plan.samples_per_step} per step",
    )
    yield from _data(train)


def _data(train: Mapping[str, Any]) -> Iterator[Finding]:
    for path in _data_paths(train):
        if not path.exists():
            yield Finding("config", FAIL, f"no data at {path}", "Correct train.data / data_path.")
        elif not os.access(path, os.R_OK):
            yield Finding("config", FAIL, f"{path} may not be read", "Change its permissions.")
        else:
            yield Finding("config", OK, f"data: {path}")


def _data_paths(train: Mapping[str, Any]) -> list[Path]:
    if train.get("data_path"):
        root = Path(str(train["data_path"])).expanduser()
        return [root / str(name) for name in train.get("dataset_names") or ("",)]
    data = train.get("data") or []
    entries = data if isinstance(data, list) else [{"path": data}]
    return [
        Path(str(entry["path"])).expanduser()
        for entry in entries
        if isinstance(entry, Mapping) and entry.get("path")
    ]


def check_memory(context: Context) -> Iterator[Finding]:
    """Shuffle buffers hold encoded frames: 20 KB is a 180x320 JPEG's size."""
    train = (context.config or {}).get("train") or {}
    windows = train.get("shuffle_buffer_size")
    if not isinstance(windows, int) or not hasattr(os, "sysconf"):
        return
    observation = (context.config or {}).get("observation") or {}
    cameras = ((observation.get("modalities") or {}).get("obs") or {}).get("rgb") or [None]
    needed = windows * len(cameras) * max(1, train.get("frame_stack") or 1) * 20_000
    there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    found = (
        f"shuffle buffers of {windows} windows hold about {needed / 2**30:.1f} GiB, the machine "
        f"has {there / 2**30:.0f}"
    )
    if needed > there / 2:
        remedy = f"Set train.shuffle_buffer_size to {windows * there // (4 * needed)} or less."
        yield Finding("memory", WARN, found, remedy)
    else:
        yield Finding("memory", OK, found)
