"""Checks the installed packages, whether they can be imported, and the host."""

from __future__ import annotations

import importlib.metadata
import platform
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from robomimic_ddp import API_VERSION, files
from robomimic_ddp.commands.doctor.findings import Context, Finding, fail, judge, ok, warn
from robomimic_ddp.config import machine
from robomimic_ddp.config.host import host_edits
from robomimic_ddp.distributed import known_errors
from robomimic_ddp.errors import other_api_version

OLDEST_TORCH = (2, 0, 1)
PACKAGES = ("torch", "torchvision", "numpy", "diffusers", "transformers", "huggingface_hub")
HOST = "robomimic.algo"
"""What is imported of the host: its nets and configs need most of its packages."""
WITH_RLDS = "pip install '.[rlds]' in the checkout of robomimic-ddp"
_REMEDIES = {
    "torchvision::nms": "torch 2.N needs torchvision 0.(N + 15), and both of them a build for the "
    "same CUDA or both for CPUs: install them together, from one index.",
    "cached_download": "pip install 'huggingface_hub<0.26', or diffusers 0.29 and later",
    machine.NO_ANSWER: "The machine is busy, or its disk slow: run doctor again when it is idle.",
    "Numpy is not available": "pip install 'numpy<2', or torch 2.3 and later",
}
"""Text in the error of packages that do not fit together -> what to install."""


def version(package: str) -> str | None:
    """Return the installed version, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _broken(package: str, error: str, remedy: str) -> Finding:
    known = (text for words, text in _REMEDIES.items() if words in error)
    of_the_machine = known_errors.remedy(error)
    return fail(f"{package} cannot be used: {error}", next(known, of_the_machine or remedy))


def check_versions(context: Context) -> Iterator[Finding]:
    installed = [f"{name} {number}" for name in PACKAGES if (number := version(name))]
    python = f"Python {platform.python_version()} ({sys.executable})"
    yield ok(", ".join([python, *installed]))
    if version("diffusers") is None:
        yield warn("diffusers is not installed", "Hosts need it: pip install diffusers")
    elif error := context.probed["diffusers"].get("error"):
        yield _broken("diffusers", error, "Hosts need it: reinstall it.")


def check_torch(context: Context) -> Iterator[Finding]:
    """Check that torch and torchvision can be used, and which backends torch has."""
    torch = context.torch
    if "error" in torch:
        remedy = "Install the build for your driver: https://pytorch.org/get-started/locally"
        yield _broken("torch", torch["error"], remedy)
        return
    build = f"torch {torch['version']}, CUDA build {torch['cuda_build']}"
    names = " and ".join(name for name in ("nccl", "gloo") if torch[name]) or "no backend"
    if tuple(map(int, re.findall(r"\d+", torch["version"])[:3])) < OLDEST_TORCH:
        yield fail(f"{build} is too old", "Install torch 2.0.1 or later.")
    elif not torch["gloo"]:
        remedy = "Ranks on CPUs communicate over gloo: install an official build of torch."
        yield fail(f"{build}, with {names}: gloo is missing", remedy)
    else:
        remedy = "Install a Linux build of torch with CUDA: gloo sends gradients through the CPU."
        yield judge(torch["nccl"] or not context.gpus, f"{build}, with {names}", remedy)
    if error := context.probed["torchvision"].get("error"):
        remedy = "Hosts need it: install the torchvision that fits this torch."
        yield _broken("torchvision", error, remedy)


def check_rlds(context: Context) -> Iterator[Finding]:
    libraries = context.probed["tensorflow_datasets"]
    if version("tensorflow-datasets") is None:
        yield ok(f"the libraries for RLDS data are not installed; if you need them: {WITH_RLDS}")
    elif "error" in libraries:
        remedy = known_errors.remedy(libraries["error"]) or f"{WITH_RLDS}."
        yield warn(f"RLDS data cannot be read: {libraries['error']}", remedy)
    else:
        resized = libraries["resized"]
        message = f"tensorflow-datasets {libraries['version']}, frames resized by {resized}"
        remedy = f"numba resizes several times faster: {WITH_RLDS}."
        yield judge(resized == "numba", message, remedy)


def check_host(context: Context) -> Iterator[Finding]:
    """Check that the robomimic which ranks import can be imported, and is edited for this version
    of the API.
    """
    try:
        Path.cwd()
    except FileNotFoundError:
        yield fail("the current folder was removed: no rank can start in it", "cd elsewhere.")
    folder = host_edits.importable_folder("robomimic")
    if folder is None:
        remedy = "Install the host in this environment (pip install -e ~/my_robomimic)."
        yield warn("no robomimic can be imported here", remedy)
        return
    paths = [path for path in sorted(folder.glob("*/*.py")) if path.is_file()]
    try:
        texts = [files.read_bytes(path).decode(errors="replace") for path in paths]
    except OSError as error:
        yield fail(f"the host cannot be read: {error}", "Replace the file, or let us read it.")
        return
    edited = [text for text in texts if host_edits.api_names(text) is not None]
    versions = {int(n) for text in edited for n in re.findall(r"api_version=(\d+)", text)}
    remedy, count = f"`robomimic-ddp apply {folder.parent}`", len(edited)
    if not edited:
        yield warn(f"{folder} is not edited: it trains on one device only", remedy)
    elif not versions:
        yield fail(f"{folder} is edited ({count} files), but no script is an entry point", remedy)
    elif error := other_api_version(versions):
        yield fail(f"{folder}: {error}", f"`robomimic-ddp revert {folder.parent}`, then apply")
    else:
        yield ok(f"{folder} is edited ({count} files, API {API_VERSION})")
        error = context.probed[HOST].get("error")
        if error and not any("error" in context.probed[name] for name in ("torch", "torchvision")):
            yield _broken(HOST, error, "Install what it needs in this environment.")
