"""Misleading environment variables, and the host in use."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from robomimic_ddp import API_VERSION
from robomimic_ddp.commands.doctor.findings import FAIL, OK, WARN, Context, Finding
from robomimic_ddp.config import env, host_seams, options
from robomimic_ddp.errors import RobomimicDDPError

SLOWING = {
    "CUDA_LAUNCH_BLOCKING": "every kernel is waited for; good for finding errors only",
    "TORCH_DISTRIBUTED_DEBUG": "DETAIL checks every collective; good for finding errors only",
    "NCCL_P2P_DISABLE": "GPUs exchange gradients through the CPU's memory",
    "NCCL_SHM_DISABLE": "ranks of a node talk over the network",
    "NCCL_IB_DISABLE": "InfiniBand is off: nodes talk over Ethernet",
    "NCCL_P2P_LEVEL": "it limits which GPUs talk directly; NCCL's own choice is usually right",
}
"""Variables of well-known remedies, which often stay set without need."""
_THREADS = re.compile(r"0*[1-9]\d*(\s*,\s*0*[1-9]\d*)*", re.ASCII)
"""OpenMP accepts one number for each level of nesting."""
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
    yield from _hidden_gpus(context)
    threads = variables.get("OMP_NUM_THREADS", "").strip()
    if threads and not _THREADS.fullmatch(threads):
        found = f"OMP_NUM_THREADS={threads}: expected a whole number of at least 1; it is ignored"
        remedy = "Each rank would compute on all cores: unset it, and torchrun sets 1."
        yield Finding("variables", WARN, found, remedy)
    for name, effect in SLOWING.items():
        if variables.get(name, "").upper() not in _HARMLESS:
            found = f"{name}={variables[name]}: {effect}"
            yield Finding("variables", WARN, found, f"unset {name}, unless it is still needed")


def _hidden_gpus(context: Context) -> Iterator[Finding]:
    """CUDA ends CUDA_VISIBLE_DEVICES at the first missing device."""
    text = context.variables.get("CUDA_VISIBLE_DEVICES", "")
    named = [name for name in text.split(",") if name.strip() not in ("", "-1")]
    seen = len(context.gpus)
    if "error" not in context.torch and len(named) > seen:
        found = f"CUDA_VISIBLE_DEVICES={text} names {len(named)} device(s), torch sees {seen}"
        remedy = "One that is not there hides all after it. Name those that nvidia-smi lists."
        yield Finding("variables", WARN, found, remedy)


def check_host(_: Context) -> Iterator[Finding]:
    """The robomimic that this Python imports, and whether it is edited for our API."""
    folder, where = _host_folder()
    if folder is None:
        remedy = "Install the host in this environment (pip install -e ~/my_robomimic)."
        yield Finding("host", WARN, "no robomimic can be imported here", remedy)
        return
    calls, versions = _edits(folder)
    if not calls:
        remedy = f"`robomimic-ddp apply {folder.parent}`"
        yield Finding("host", WARN, f"{folder} ({where}) is not edited: one device only", remedy)
    elif versions != {API_VERSION}:
        found = f"{folder} ({where}) is edited for API {sorted(versions)}, this package has "
        found += str(API_VERSION)
        remedy = f"`robomimic-ddp revert {folder.parent}`, then apply"
        yield Finding("host", FAIL, found, remedy)
    else:
        found = f"{folder} ({where}) is edited ({calls} files, API {API_VERSION})"
        yield Finding("host", OK, found)


def _host_folder() -> tuple[Path | None, str]:
    """(the host's package, where it was found). `python -m`, and so torchrun, searches the current
    folder first; a console script such as ours searches its folder.
    """
    here = Path.cwd() / "robomimic"
    if (here / "__init__.py").is_file() and not getattr(sys.flags, "safe_path", False):
        return here, "in the current folder"
    try:
        spec = importlib.util.find_spec("robomimic")
    except (ImportError, ValueError):
        spec = None
    places = (spec.submodule_search_locations or ()) if spec else ()
    return next((Path(place) for place in places), None), "installed"


def _edits(folder: Path) -> tuple[int, set[int]]:
    """How many files of the host call us, and for which versions of our API."""
    calls, versions = 0, set()
    for part in ("algo", "scripts", "utils"):
        for path in sorted((folder / part).glob("*.py")):
            text = path.read_text(encoding="utf-8", errors="replace")
            if host_seams.api_names(text) is None:
                continue
            calls += 1
            versions |= {int(number) for number in re.findall(r"api_version=(\d+)", text)}
    return calls, versions
