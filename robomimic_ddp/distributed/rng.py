"""The global random streams of this process: read, put back, and forked for a while; and torch held
to deterministic algorithms.

A state is a nest of dicts, tensors and numbers only, so that it can be kept in a file that
`torch.load(weights_only=True)` reads.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from robomimic_ddp.config import env

_MOST_RANKS = 2**20


def capture() -> dict[str, Any]:
    """The states of torch (CPU; CUDA where it is in use), numpy and Python.

    torch: uint8 [N]; cuda: a list of uint8 [16], one a device; numpy and python: their words as
    int64, position, and a kept Gaussian number (None: no number is kept).
    """
    name, words, position, has_gauss, gauss = np.random.get_state()
    assert name == "MT19937", name
    version, internal, python_gauss = random.getstate()
    return {
        "torch": torch.get_rng_state().clone(),
        "cuda": [torch.cuda.get_rng_state(device) for device in _cuda_devices()],
        "numpy": {
            "words": torch.from_numpy(np.asarray(words).astype(np.int64)),
            "position": int(position),
            "gauss": float(gauss) if has_gauss else None,
        },
        "python": {
            "version": version,
            "words": torch.tensor(internal, dtype=torch.int64),
            "gauss": python_gauss,
        },
    }


def restore(state: dict[str, Any]) -> None:
    """Puts back what `capture` returned. CUDA states are put back as far as there are devices."""
    torch.set_rng_state(state["torch"].cpu().to(torch.uint8))
    for device, cuda_state in zip(_cuda_devices(), state["cuda"]):
        torch.cuda.set_rng_state(cuda_state.cpu().to(torch.uint8), device)
    numpy, python = state["numpy"], state["python"]
    words = numpy["words"].numpy().astype(np.uint32)
    gauss = numpy["gauss"]
    np.random.set_state(("MT19937", words, numpy["position"], int(gauss is not None), gauss or 0.0))
    random.setstate((python["version"], tuple(python["words"].tolist()), python["gauss"]))


def _cuda_devices() -> list[int]:
    """The devices whose generators this process draws from: DataParallel uses all of them."""
    if not (torch.cuda.is_available() and torch.cuda.is_initialized()):
        return []
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    return [torch.cuda.current_device()] if distributed else list(range(torch.cuda.device_count()))


@contextmanager
def kept() -> Iterator[None]:
    """Afterwards the streams are where they were, whatever the block drew."""
    before = capture()
    try:
        yield
    finally:
        restore(before)


@contextmanager
def forked(*entropy: int) -> Iterator[None]:
    """For the block, streams of its own, a pure function of `entropy`; afterwards those of before,
    where they were.
    """
    with kept():
        seed(*entropy)
        yield


def seed(*entropy: int) -> None:
    """Starts the streams of torch (CPU, CUDA), numpy and Python anew: a function of `entropy`."""
    word = int(np.random.SeedSequence([word % 2**64 for word in entropy]).generate_state(1)[0])
    torch.manual_seed(word)
    np.random.seed(word)
    random.seed(word)


def seed_streams(seed: int, rank: int, epoch: int = 0) -> None:
    """Gives ranks above 0 random streams of their own, reproducible from (seed, rank); rank 0 keeps
    the host's. `epoch`: the last one before a rank came newly into a resumed run, so that it does
    not draw again what a rank of its number has drawn.

    Called after construction, so that weights start equal while noise, timesteps and augmentation
    differ.
    """
    if rank == 0:
        return
    entropy = [seed % 2**32, epoch] if epoch else seed % 2**32
    # torch's CPU generator uses 32 bits of a seed, numpy takes no more: ranks get neighbouring
    # seeds, which differ by construction, in a range that does not hold the main rank's.
    base = int(np.random.SeedSequence(entropy).generate_state(1)[0])
    if (seed - base) % 2**32 < _MOST_RANKS:
        base += _MOST_RANKS
    own = (base + rank) % 2**32
    torch.manual_seed(own)  # CPU and all CUDA devices
    np.random.seed(own)
    random.seed(own)


@contextmanager
def deterministic_algorithms(is_on: bool) -> Iterator[None]:
    """For the block, where `is_on`: torch uses deterministic algorithms only, and cuDNN does not
    choose by timing; torch raises RuntimeError at an operation that has none.

    What torch was set to before is put back; cuBLAS's workspace, an environment variable that is
    read once, stays. Not collective.
    """
    if not is_on:
        yield
        return
    env.prefer_deterministic_cublas()
    before = torch.are_deterministic_algorithms_enabled()
    warned_only = torch.is_deterministic_algorithms_warn_only_enabled()
    benchmark = torch.backends.cudnn.benchmark
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warned_only)
        torch.backends.cudnn.benchmark = benchmark
