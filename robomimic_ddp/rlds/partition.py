"""Which rank reads which windows in which pass: pure arithmetic, the same on every rank, no
communication.

A pass visits every window of a data set once. Its files come in an order drawn from (seed, pass),
the episodes of each file likewise; laid end to end they form one row of windows, which is cut into
one stretch per rank. So a rank owns whole files except at its two cuts, where a file (or, with more
ranks than files, most of them) is shared by record, and a single episode by window. Records are
fetched by byte offset: nobody reads a record of others.

The stretches are as equal as integers allow *over the whole run*: after pass p each rank has been
given floor or ceil of (p + 1) * windows / world windows. Batches are cut from each rank's endless
row of windows, so a pass's leftovers open the next pass by themselves, and the number of full
batches that all ranks have after pass p is floor((p + 1) * windows / (world * batch)): closed
formulas, equal on all ranks, for any position of the run.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

FILE_ORDER, EPISODE_ORDER, PIECE_ORDER, WINDOW_PICK, SHUFFLE = range(5)
"""Separate random streams of one (seed, pass)."""


@dataclass(frozen=True)
class Pieces:
    """What one rank reads in one pass, in reading order.

    episode: int64 [P], a row number of the table of episodes; start, stop: int64 [P], the piece's
    part [start, stop) of that episode's windows of this pass.
    """

    episode: np.ndarray
    start: np.ndarray
    stop: np.ndarray


def random_keys(count: int, *seed: int) -> np.ndarray:
    """`count` random uint64, a pure function of `seed`; raw bits, which numpy keeps equal over its
    versions.
    """
    return np.random.PCG64(np.random.SeedSequence(seed)).random_raw(count)


def permutation(count: int, *seed: int) -> np.ndarray:
    """A permutation of range(count), int64 [count], a pure function of `seed`."""
    return np.argsort(random_keys(count, *seed), kind="stable").astype(np.int64)


def pass_order(file_of_episode: np.ndarray, seed: int, pass_number: int) -> np.ndarray:
    """The episodes in the order of this pass, int64 [E]: files in a new order, episodes of a file
    together.
    """
    files, position = np.unique(file_of_episode, return_inverse=True)
    rank_of_file = permutation(len(files), seed, pass_number, FILE_ORDER)
    within = random_keys(len(file_of_episode), seed, pass_number, EPISODE_ORDER)
    return np.lexsort((within, rank_of_file[position])).astype(np.int64)


def shard_bounds(windows: int, pass_number: int, rank: int, world_size: int) -> tuple[int, int]:
    """The stretch [start, stop) of the pass's row of `windows` windows that belongs to `rank`.

    Needs a window per rank after pass 0; the loader asks for a whole batch per rank.
    """
    assert windows >= world_size or pass_number == 0, (windows, world_size)
    before, after = pass_number * windows, (pass_number + 1) * windows

    def cut(number: int) -> int:
        return number * after // world_size - number * before // world_size

    return cut(rank), cut(rank + 1)


def windows_before(windows: int, pass_number: int, rank: int, world_size: int) -> int:
    """Windows that `rank` is given in all passes before `pass_number`: the sum of their stretches
    (`shard_bounds`), in closed form.
    """
    before = pass_number * windows
    return (rank + 1) * before // world_size - rank * before // world_size


def batches_through(windows: int, pass_number: int, batch_size: int, world_size: int) -> int:
    """Full batches that every rank has taken when pass `pass_number` ends; -1 is before the run."""
    return (pass_number + 1) * windows // (world_size * batch_size)


def batches_in_pass(windows: int, pass_number: int, batch_size: int, world_size: int) -> int:
    """Full batches that every rank takes in pass `pass_number`."""
    return batches_through(windows, pass_number, batch_size, world_size) - batches_through(
        windows, pass_number - 1, batch_size, world_size
    )


def cut_pieces(order: np.ndarray, windows: np.ndarray, start: int, stop: int) -> Pieces:
    """The pieces of the stretch [start, stop) of the row that `order` makes of episodes with
    `windows` [E] each.
    """
    ends = np.cumsum(windows[order])
    begins = ends - windows[order]
    touched = (ends > start) & (begins < stop)
    begins, ends = begins[touched], ends[touched]
    return Pieces(order[touched], np.maximum(start - begins, 0), np.minimum(stop, ends) - begins)


def shard(
    file_of_episode: np.ndarray,
    windows: np.ndarray,
    seed: int,
    pass_number: int,
    rank: int,
    world_size: int,
) -> Pieces:
    """What `rank` reads in pass `pass_number`; over ranks disjoint, and together every window once.

    `windows` int64 [E] are the windows that each episode gives to every pass. The rank's pieces are
    read in an order of its own, so that neighbours in time are not neighbours in a file.
    """
    order = pass_order(file_of_episode, seed, pass_number)
    start, stop = shard_bounds(int(windows.sum()), pass_number, rank, world_size)
    pieces = cut_pieces(order, windows, start, stop)
    mixed = permutation(len(pieces.episode), seed, pass_number, PIECE_ORDER, rank)
    return Pieces(pieces.episode[mixed], pieces.start[mixed], pieces.stop[mixed])


def shuffle_seed(seed: int, pass_number: int, rank: int) -> int:
    """Seed of the rank's shuffle buffer in this pass, 1 .. 2**31 - 1 (TensorFlow reads 0 as
    "none").
    """
    return int(random_keys(1, seed, pass_number, SHUFFLE, rank)[0] % (2**31 - 1)) + 1
