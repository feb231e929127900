"""Saves, restores, seeds and forks the global random streams; switches on deterministic algorithms.

A state has only dicts, tensors and numbers, for `torch.load(weights_only=True)`.
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
    """Return the states of torch (CPU; CUDA where it is in use), numpy and Python.

    torch: uint8 [N]; cuda: a list of uint8 [16], one for each device; numpy and python: their words
    as int64, position, and a cached Gaussian number or None.
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
            "words": torch.tensor(internal),
            "gauss": python_gauss,
        },
    }


def restore(state: dict[str, Any]) -> None:
    """Restores the result of `capture`; CUDA states for the existing devices only. Raises
    LookupError, TypeError, ValueError or AttributeError for another `state`.
    """
    try:
        torch.set_rng_state(state["torch"].cpu())
        for device, cuda_state in zip(_cuda_devices(), state["cuda"]):
            torch.cuda.set_rng_state(cuda_state.cpu(), device)
    except RuntimeError as error:  # a state of another size
        raise ValueError(f"torch's random state: {error}") from error
    numpy, python = state["numpy"], state["python"]
    words = numpy["words"].numpy().astype(np.uint32)
    gauss = numpy["gauss"]
    np.random.set_state(("MT19937", words, numpy["position"], int(gauss is not None), gauss or 0.0))
    random.setstate((python["version"], tuple(python["words"].tolist()), python["gauss"]))


def _cuda_devices() -> list[int]:
    """Return the devices that this process draws random numbers on: all, for DataParallel."""
    if not (torch.cuda.is_available() and torch.cuda.is_initialized()):
        return []
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    return [torch.cuda.current_device()] if distributed else list(range(torch.cuda.device_count()))


@contextmanager
def kept() -> Iterator[None]:
    """Restores the streams after the block."""
    before = capture()
    try:
        yield
    finally:
        restore(before)


@contextmanager
def forked(*entropy: int) -> Iterator[None]:
    """For the block, seeds the streams by `entropy`; restores them after it."""
    with kept():
        seed(*entropy)
        yield


def seed(*entropy: int) -> None:
    """Seeds the streams of torch (CPU, CUDA), numpy and Python: a function of `entropy`."""
    _seed_all(int(np.random.SeedSequence([word % 2**64 for word in entropy]).generate_state(1)[0]))


def seed_streams(seed: int, rank: int, epoch: int = 0) -> None:
    """Gives ranks above 0 separate random streams, a function of (seed, rank); rank 0 keeps the
    host's. epoch: the last one before a new rank joined a resumed run, so that it does not repeat
    the numbers of an earlier rank of its number.

    Called after construction, so that weights start equal while noise, timesteps and augmentation
    differ.
    """
    if rank == 0:
        return
    # torch's CPU generator uses 32 bits of a seed, numpy takes no more: ranks get consecutive
    # seeds, which differ by construction, in a range without the main rank's.
    base = int(np.random.SeedSequence([seed % 2**32, epoch]).generate_state(1)[0])
    if (seed - base) % 2**32 < _MOST_RANKS:
        base += _MOST_RANKS
    _seed_all((base + rank) % 2**32)


def _seed_all(word: int) -> None:
    torch.manual_seed(word)  # CPU and all CUDA devices
    np.random.seed(word)
    random.seed(word)


@contextmanager
def deterministic_algorithms(is_on: bool) -> Iterator[None]:
    """For the block, if `is_on`: torch uses deterministic algorithms, cuDNN does not benchmark, and
    an operation without a deterministic algorithm raises RuntimeError.

    Restores torch's settings; cuBLAS's workspace, an environment variable that is read once, stays.
    Not collective.
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
