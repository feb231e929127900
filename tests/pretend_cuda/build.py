"""Builds the pretend CUDA with gcc, from the headers that torch's own wheels bring."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent
OURS = Path(torch.__file__).parents[1]
HEADERS = ("cu13/include", "cuda_runtime/include")
"""Of CUDA 13, and of 12 and before, in the folder nvidia/ beside torch."""
OLDEST = 12000
"""As CUDART_VERSION counts."""
MADE = {
    "runtime": "libpretend_runtime.so",
    "nccl": "libpretend_nccl.so",
    "blas": "libpretend_blas.so",
    "driver": "libcuda.so.1",
}
"""Source -> library."""


def why_not(packages: Path = OURS) -> str | None:
    """Why it cannot be built here for the torch in the folder `packages`, or None."""
    if sys.platform != "linux" or shutil.which("gcc") is None:
        return "the pretend CUDA is built with gcc, on Linux"
    if _headers(packages) is None:
        return "the pretend CUDA is built with the headers that torch's wheel with CUDA 12 brings"
    return None


def _headers(packages: Path) -> Path | None:
    folders = (packages / "nvidia" / name for name in HEADERS)
    return next((folder for folder in folders if _version(folder) >= OLDEST), None)


def _version(folder: Path) -> int:
    header = folder / "cuda_runtime_api.h"
    text = header.read_text(encoding="utf-8") if header.exists() else ""
    defined = re.search(r"#define CUDART_VERSION +(\d+)", text)
    return int(defined[1]) if defined else 0


def build(folder: Path, packages: Path = OURS) -> None:
    """Builds into `folder`."""
    flags = ["-shared", "-fPIC", "-w", f"-I{HERE / 'include'}", f"-I{_headers(packages)}"]
    for source, name in MADE.items():
        named = [f"-Wl,-soname,{name}", "-o", str(folder / name), str(HERE / f"{source}.c")]
        subprocess.run(["gcc", *flags, *named, "-lpthread", "-ldl"], check=True)
    (folder / "libcuda.so").symlink_to(MADE["driver"])  # what Triton links with


def variables(folder: Path) -> dict[str, str]:
    """With these a program runs on what `build` has made in `folder`."""
    preloaded = [str(folder / name) for name in MADE.values() if name.startswith("libpretend")]
    return {
        "LD_PRELOAD": " ".join(preloaded),
        "LD_LIBRARY_PATH": str(folder),
        "PYTORCH_NO_CUDA_MEMORY_CACHING": "1",  # each tensor is new memory, of zeros
    }
