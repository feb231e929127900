"""Builds the pretend CUDA with gcc, from the headers that torch's own wheels bring."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent
TORCH_CUDA = "13.0"
"""Of the torch whose calls the libraries answer."""
MADE = {
    "runtime": "libpretend_runtime.so",
    "nccl": "libpretend_nccl.so",
    "blas": "libpretend_blas.so",
    "driver": "libcuda.so.1",
}
"""Source -> library."""


def why_not() -> str | None:
    """Why it cannot be built here, or None."""
    if sys.platform != "linux" or shutil.which("gcc") is None:
        return "the pretend CUDA is built with gcc, on Linux"
    if torch.version.cuda != TORCH_CUDA or not _headers().is_dir():
        return f"the pretend CUDA is for torch's wheel with CUDA {TORCH_CUDA} and its headers"
    return None


def _headers() -> Path:
    return Path(torch.__file__).parents[1] / "nvidia" / "cu13" / "include"


def build(folder: Path) -> None:
    """Builds into `folder`."""
    flags = ["-shared", "-fPIC", "-w", f"-I{HERE / 'include'}", f"-I{_headers()}"]
    for source, name in MADE.items():
        named = [f"-Wl,-soname,{name}", "-o", str(folder / name), str(HERE / f"{source}.c")]
        subprocess.run(["gcc", *flags, *named, "-lpthread", "-ldl"], check=True)


def variables(folder: Path) -> dict[str, str]:
    """With these a program runs on what `build` has made in `folder`."""
    preloaded = [str(folder / name) for name in MADE.values() if name.startswith("libpretend")]
    return {
        "LD_PRELOAD": " ".join(preloaded),
        "LD_LIBRARY_PATH": str(folder),
        "PYTORCH_NO_CUDA_MEMORY_CACHING": "1",  # each tensor is new memory, of zeros
    }
