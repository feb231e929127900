"""Versions of packages, and known incompatible pairs."""

from __future__ import annotations

import importlib.metadata
import platform
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from robomimic_ddp.commands.doctor.findings import FAIL, OK, WARN, Context, Finding, judged, probe
from robomimic_ddp.config.rlds_keys import DATA_FORMAT as RLDS_FORMAT

OLDEST_PYTHON, OLDEST_TORCH = (3, 9), (2, 0, 1)
TESTED = "tested with Python 3.9 and torch 2.0.1 (on CPU), and with Python 3.11 and torch 2.12.1"
PACKAGES = ("torch", "torchvision", "numpy", "diffusers", "transformers", "huggingface_hub")
WITH_RLDS = "pip install '.[rlds]' in the checkout of robomimic-ddp"
RLDS_PACKAGES = ("tensorflow-datasets", "tensorflow", "tensorflow-cpu")


def version(package: str) -> str | None:
    """The installed version, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def numbers(text: str | None) -> tuple[int, ...]:
    """(2, 12, 1) of "2.12.1+cu130"; () of None."""
    return tuple(int(part) for part in re.findall(r"\d+", (text or "").partition("+")[0])[:3])


def check_python(_: Context) -> Iterator[Finding]:
    found = f"Python {platform.python_version()} ({sys.executable})"
    is_fine = sys.version_info >= OLDEST_PYTHON
    yield judged("python", is_fine, found, "Use Python 3.9 or later.", FAIL)


def check_packages(_: Context) -> Iterator[Finding]:
    installed = {name: version(name) for name in (*PACKAGES, *RLDS_PACKAGES)}
    names = ", ".join(f"{name} {number}" for name, number in installed.items() if number)
    yield Finding("packages", OK, f"{names or 'none of the packages that hosts need'}; {TESTED}")
    for name in ("diffusers", "numpy"):
        if installed[name] is None:
            yield Finding("packages", WARN, f"no {name}", f"Hosts need it: pip install {name}")
    if installed["tensorflow-datasets"] is None:
        remedy = f"Only RLDS data needs it: {WITH_RLDS}"
        yield Finding("packages", OK, f"no tensorflow-datasets. {remedy}")
    yield from bad_pairs(installed)


def bad_pairs(installed: dict[str, str | None]) -> Iterator[Finding]:
    """Findings for incompatible versions (package -> version or None)."""
    torch, vision = numbers(installed.get("torch")), numbers(installed.get("torchvision"))
    if torch and torch < OLDEST_TORCH:
        found = f"torch {installed['torch']}"
        yield Finding("versions", FAIL, found, "Install torch 2.0.1 or later.")
    # torch 2.N goes with torchvision 0.(N + 15): torchvision's README, "Installation"
    if torch[:1] == (2,) and vision and vision[:2] != (0, torch[1] + 15):
        yield Finding(
            "versions",
            FAIL,
            f"torchvision {installed['torchvision']} with torch {installed['torch']}: its "
            "operators are built for another torch (operator torchvision::nms does not exist)",
            f"pip install 'torchvision==0.{torch[1] + 15}.*', from the index torch came from",
        )
    if numbers(installed.get("numpy"))[:1] >= (2,) and torch and torch < (2, 3):
        yield Finding(
            "versions",
            FAIL,
            f"numpy {installed['numpy']} with torch {installed['torch']}, built for numpy 1",
            "pip install 'numpy<2', or torch 2.3 and later",
        )
    tensorflow = installed.get("tensorflow") or installed.get("tensorflow-cpu")
    if numbers(installed.get("numpy"))[:1] >= (2,) and () < numbers(tensorflow) < (2, 18):
        yield Finding(
            "versions",
            FAIL,
            f"numpy {installed['numpy']} with TensorFlow {tensorflow}, built for numpy 1",
            "pip install 'numpy<2', or TensorFlow 2.18 and later",
        )
    diffusers, hub = numbers(installed.get("diffusers")), numbers(installed.get("huggingface_hub"))
    if diffusers and diffusers < (0, 29) and hub >= (0, 26):
        yield Finding(
            "versions",
            FAIL,
            f"diffusers {installed['diffusers']} with huggingface_hub "
            f"{installed['huggingface_hub']}, which no longer has cached_download",
            "pip install 'huggingface_hub<0.26'",
        )


def check_torch(context: Context) -> Iterator[Finding]:
    torch = context.torch
    if "error" in torch:
        missing = "No module named 'torch'" in torch["error"]
        yield Finding(
            "torch",
            FAIL,
            "torch is not installed" if missing else f"torch cannot be imported: {torch['error']}",
            "Install the build for your driver: https://pytorch.org/get-started/locally",
        )
        return
    yield Finding("torch", OK, f"torch {torch['version']}, CUDA build {torch['cuda_build']}")
    if torch["torchvision"]:
        yield Finding(
            "torch",
            FAIL,
            f"torchvision cannot be imported: {torch['torchvision']}",
            "Hosts need it. Install the torchvision that belongs to this torch.",
        )
    if not torch["distributed"] or not torch["gloo"]:
        found = "torch is built without torch.distributed or gloo"
        yield Finding("torch", FAIL, found, "Install an official build of torch.")


def check_tensorflow(context: Context) -> Iterator[Finding]:
    """Finds a TensorFlow that would take GPU memory; starts it only for a config with RLDS data."""
    if context.section("train").get("data_format") == RLDS_FORMAT:
        yield _started_tensorflow(probe("tensorflow"))
    elif context.gpus and (version("tensorflow") or version("tensorflow-cpu")):
        yield Finding(
            "tensorflow",
            OK,
            "TensorFlow is installed beside GPUs; our RLDS loader hides them from it. Code of your "
            "own must call tf.config.set_visible_devices([], 'GPU') before it reads data.",
        )


def _started_tensorflow(probed: Mapping[str, Any]) -> Finding:
    if "error" in probed:
        remedy = f"RLDS data is read with it: {WITH_RLDS}"
        return Finding("tensorflow", FAIL, f"it cannot be used: {probed['error']}", remedy)
    found = f"TensorFlow {probed['version']} reads, and sees {probed['gpus']} GPU(s)"
    remedy = "It would take the policy's memory: pip install tensorflow-cpu in its place."
    return judged("tensorflow", not probed["gpus"], found, remedy, FAIL)
