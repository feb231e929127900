"""Checks packages: their versions, pairs known not to work, broken builds, and the host."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from robomimic_ddp import API_VERSION
from robomimic_ddp.commands.doctor.findings import FAIL, OK, WARN, Context, Finding
from robomimic_ddp.config import host_seams
from robomimic_ddp.errors import other_api_version

OLDEST_TORCH = (2, 0, 1)
PACKAGES = ("torch", "torchvision", "numpy", "diffusers", "transformers", "huggingface_hub")
WITH_RLDS = "pip install '.[rlds]' in the checkout of robomimic-ddp"


def version(package: str) -> str | None:
    """Return the installed version, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _numbers(text: str | None) -> tuple[int, ...]:
    """Return (2, 12, 1) for "2.12.1+cu130", () for None."""
    return tuple(int(part) for part in re.findall(r"\d+", (text or "").partition("+")[0])[:3])


def check_versions(_: Context) -> Iterator[Finding]:
    installed = {name: number for name in PACKAGES if (number := version(name))}
    names = [f"{name} {number}" for name, number in installed.items()]
    python = f"Python {platform.python_version()} ({sys.executable})"
    yield Finding("versions", OK, ", ".join([python, *names]))
    for name in ("diffusers", "numpy"):
        if name not in installed:
            yield Finding("versions", WARN, f"no {name}", f"Hosts need it: pip install {name}")
    yield from mismatches(installed)


def mismatches(installed: Mapping[str, str]) -> Iterator[Finding]:
    """Yield a failure for each pair of versions that is known not to work together."""
    names = ("torch", "torchvision", "numpy", "diffusers", "huggingface_hub")
    torch, vision, numpy, diffusers, hub = (_numbers(installed.get(name)) for name in names)
    # torch 2.N goes with torchvision 0.(N + 15): torchvision's README, "Installation".
    fitting = (0, torch[1] + 15) if torch[:1] == (2,) else vision[:2]
    pairs = (
        (
            () < torch < OLDEST_TORCH,
            ("torch",),
            "which is too old",
            "Install torch 2.0.1 or later.",
        ),
        (
            bool(vision) and vision[:2] != fitting,
            ("torchvision", "torch"),
            "for which its operators are not built (operator torchvision::nms does not exist)",
            f"pip install 'torchvision=={'.'.join(map(str, fitting))}.*', from torch's index",
        ),
        (
            () < torch < (2, 3) and numpy >= (2,),
            ("numpy", "torch"),
            "which is built for numpy 1",
            "pip install 'numpy<2', or torch 2.3 and later",
        ),
        (
            () < diffusers < (0, 29) and hub >= (0, 26),
            ("diffusers", "huggingface_hub"),
            "which no longer has cached_download",
            "pip install 'huggingface_hub<0.26'",
        ),
    )
    for is_wrong, packages, reason, remedy in pairs:
        if is_wrong:
            both = " with ".join(f"{name} {installed[name]}" for name in packages)
            yield Finding("versions", FAIL, f"{both}, {reason}", remedy)


def check_torch(context: Context) -> Iterator[Finding]:
    """Check that torch and torchvision can be imported, and which backends torch has."""
    torch = context.torch
    if "error" in torch:
        remedy = "Install the build for your driver: https://pytorch.org/get-started/locally"
        yield Finding("torch", FAIL, f"torch cannot be imported: {torch['error']}", remedy)
        return
    build = f"torch {torch['version']}, CUDA build {torch['cuda_build']}"
    names = " and ".join(name for name in ("nccl", "gloo") if torch[name]) or "no backend"
    if not torch["gloo"]:
        remedy = "Ranks on CPUs meet over gloo: install an official build of torch."
        yield Finding("torch", FAIL, f"{build}, with {names}: gloo is missing", remedy)
    elif context.gpus and not torch["nccl"]:
        remedy = "Install a Linux build of torch with CUDA; gloo moves gradients over the CPU."
        yield Finding("torch", WARN, f"{build}, without NCCL", remedy)
    else:
        yield Finding("torch", OK, f"{build}, with {names}")
    if "error" in context.torchvision:
        message = f"torchvision cannot be imported: {context.torchvision['error']}"
        remedy = "Hosts need it. Install the torchvision that belongs to this torch."
        yield Finding("torch", FAIL, message, remedy)


def check_tensorflow(context: Context) -> Iterator[Finding]:
    tensorflow = context.tensorflow
    if version("tensorflow") is None and version("tensorflow-cpu") is None:
        yield Finding("tensorflow", OK, f"not installed. Only RLDS data needs it: {WITH_RLDS}")
    elif "error" in tensorflow:
        message = f"it cannot be used: {tensorflow['error']}"
        yield Finding("tensorflow", WARN, message, f"RLDS data is read with it: {WITH_RLDS}")
    else:
        message = f"TensorFlow {tensorflow['version']} reads, and sees {tensorflow['gpus']} GPU(s)"
        yield Finding("tensorflow", OK, message)


def check_host(_: Context) -> Iterator[Finding]:
    """Check that the robomimic which ranks import is edited for this version of our API."""
    folder, where = _host_folder()
    if folder is None:
        remedy = "Install the host in this environment (pip install -e ~/my_robomimic)."
        yield Finding("host", WARN, "no robomimic can be imported here", remedy)
        return
    count, versions = edited_files(folder)
    if not count:
        remedy = f"`robomimic-ddp apply {folder.parent}`"
        yield Finding("host", WARN, f"{folder} ({where}) is not edited: one device only", remedy)
    elif not versions:
        message = f"{folder} ({where}) is edited ({count} files), and no script is an entry point"
        yield Finding("host", FAIL, message, f"`robomimic-ddp apply {folder.parent}`")
    elif error := other_api_version(versions):
        remedy = f"`robomimic-ddp revert {folder.parent}`, then apply"
        yield Finding("host", FAIL, f"{folder} ({where}): {error}", remedy)
    else:
        message = f"{folder} ({where}) is edited ({count} files, API {API_VERSION})"
        yield Finding("host", OK, message)


def _host_folder() -> tuple[Path | None, str]:
    """Return the host's package and where it was found. `python -m`, and so torchrun, searches the
    current folder first; a console script such as ours searches its folder.
    """
    here = Path.cwd() / "robomimic"
    if (here / "__init__.py").is_file() and not getattr(sys.flags, "safe_path", False):
        return here, "in the current folder"
    try:
        spec = importlib.util.find_spec("robomimic")
    except (ImportError, ValueError):
        spec = None
    folders = (spec.submodule_search_locations or ()) if spec else ()
    return next((Path(folder) for folder in folders), None), "installed"


def edited_files(folder: Path) -> tuple[int, set[int]]:
    """Return how many files of the host call us, and the versions of our API that they name."""
    count, versions = 0, set()
    for room in ("algo", "scripts", "utils"):
        for path in sorted((folder / room).glob("*.py")):
            text = path.read_text(encoding="utf-8", errors="replace")
            if host_seams.api_names(text) is not None:
                count += 1
                versions |= {int(number) for number in re.findall(r"api_version=(\d+)", text)}
    return count, versions
