"""The order of a pass over RLDS data: a pure function of (seed, pass), the same on every rank.

Files are shuffled, then the episodes of each file. Other draws of a pass have their streams here.
"""

from __future__ import annotations

import numpy as np

FILE_ORDER, EPISODE_ORDER, PIECE_ORDER, WINDOW_PICK, SHUFFLE = range(5)
"""Separate random streams of one (seed, pass)."""


def random_keys(count: int, *seed: int) -> np.ndarray:
    """Return `count` random uint64, a function of `seed`: raw bits, equal in all numpy versions."""
    return np.random.PCG64(np.random.SeedSequence(seed)).random_raw(count)


def permutation(count: int, *seed: int) -> np.ndarray:
    """Return a permutation of range(count), int64 [count], a pure function of `seed`."""
    return np.argsort(random_keys(count, *seed), kind="stable").astype(np.int64)


def pass_order(file_of_episode: np.ndarray, seed: int, pass_number: int) -> np.ndarray:
    """Return the episodes in the order of this pass, int64 [E]: shuffled by file, then in each."""
    files, position = np.unique(file_of_episode, return_inverse=True)
    rank_of_file = permutation(len(files), seed, pass_number, FILE_ORDER)
    within = random_keys(len(file_of_episode), seed, pass_number, EPISODE_ORDER)
    return np.lexsort((within, rank_of_file[position])).astype(np.int64)
