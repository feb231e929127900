"""Batches from the frame cache, in the planned order: gathered from memory maps, without
TensorFlow, records or a shuffle buffer.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Callable

import numpy as np
import torch

from robomimic_ddp.data.frame_cache import Column
from robomimic_ddp.data.rlds.dataset import RLDSDataset
from robomimic_ddp.data.rlds.index.statistics import TEXT_END
from robomimic_ddp.data.rlds.order.mixture_quota import Quotas
from robomimic_ddp.data.rlds.order.read_plan import PassPlan
from robomimic_ddp.data.rlds.order.windows import window_indices
from robomimic_ddp.data.rlds.pipeline.graph import ENDLESS, FrameCounters
from robomimic_ddp.data.rlds.pipeline.settings import Batching
from robomimic_ddp.data.rlds.pipeline.skip_corrupt import NOTHING


class CachedBatches:
    """What `graph.build` makes of the same arguments, from `dataset.cached`: the same batches, to
    the bit, as torch tensors. Each `iter` begins again.
    """

    def __init__(
        self,
        dataset: RLDSDataset,
        plan_of: Callable[[int], PassPlan],
        parts: int | None,
        batching: Batching,
        counters: FrameCounters,
        start: tuple[int, int] = (0, 0),
        groups: Callable[[int, int], np.ndarray] | None = None,
    ) -> None:
        self._dataset, self._plan_of, self._parts = dataset, plan_of, parts or ENDLESS
        self._batching, self._counters = batching, counters
        self._start, self._groups = start, groups

    def __iter__(self) -> Iterator[dict[str, Any]]:
        numbers = self._numbers()

        def batch() -> dict[str, Any] | None:
            index = next(numbers, None)
            return None if index is None else self._batch(index)

        device = None
        if self._batching.pin_memory and torch.cuda.is_available():  # see `prefetch.Prefetcher`
            device = partial(torch.cuda.set_device, torch.cuda.current_device())
        with ThreadPoolExecutor(1, "rlds-cached", device) as pool:
            ahead = deque(pool.submit(batch) for _ in range(self._batching.prefetch + 1))
            while True:
                made = ahead.popleft().result()
                if made is None:
                    return
                ahead.append(pool.submit(batch))
                yield made

    def _numbers(self) -> Iterator[np.ndarray]:
        """The windows of each batch, int64 [B], as `graph._batches` puts them together."""
        waiting, code_of = np.zeros(0, np.int64), np.zeros(0, np.int64)
        for index, codes in self._blocks():
            waiting, code_of = np.append(waiting, index), np.append(code_of, codes)
            while len(waiting):
                size = self._batching.batch_size
                if self._groups:
                    size = Quotas.group_size(int(code_of[0]))
                if len(waiting) < size:
                    break
                yield waiting[:size]
                waiting, code_of = waiting[size:], code_of[size:]
        if len(waiting):
            yield waiting

    def _blocks(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """The windows of each block of each part, and their codes (see `graph.build`)."""
        first, taken = self._start
        parts = itertools.count(first) if self._parts == ENDLESS else range(first, self._parts)
        for part in parts:
            plan = self._plan_of(part)
            here = taken if part == first else 0
            begin = plan.block_of(here) if here else 0
            for number in range(begin, plan.blocks):
                index, before = plan.windows(number, here if number == begin else 0)
                count = len(index)
                yield index, self._groups(before, count) if self._groups else np.zeros(count, int)

    def _batch(self, index: np.ndarray) -> dict[str, Any]:
        """The delivered batch (see `RLDSLoader`) of the windows `index`."""
        settings, cached = self._dataset.settings, self._dataset.cached
        fields, numbers, readable = settings.fields, cached.numbers.values, len(index)
        if settings.skip_corrupt:
            index, readable = self._replaced(index)
        row, seen, acted, inside = self._steps(index)
        begin, parts = 0, {}
        for key, size in fields.low_dim_shapes.items():
            end = begin + int(np.prod(size))
            parts[key] = numbers[seen, begin:end].reshape(*seen.shape, *size)
            begin = end
        actions = (numbers[acted, begin:-1] - settings.offset) / settings.scale
        actions = np.clip(actions, -settings.limit, settings.limit)
        obs = {key: self._tensor(part) for key, part in parts.items()}
        obs.update((key, self._frames(column, seen)) for key, column in cached.images.items())
        language = [""] * len(index)
        if fields.language:
            said = numbers[seen[:, -1], -1].astype(int).tolist()
            language = [self._texts(one)[number] for one, number in zip(row.tolist(), said)]
        frames = readable * seen.shape[1] * len(cached.images)
        self._counters.decoded.assign_add(frames)
        self._counters.batched.assign_add(frames)
        return {
            "obs": obs,
            "actions": self._tensor(actions),
            "pad_mask": self._tensor(inside),
            "language": language,
            "index": self._tensor(index if readable else np.full(len(index), NOTHING)),
        }

    def _steps(self, index: np.ndarray) -> tuple[np.ndarray, ...]:
        """The episodes of the windows `index`, rows of the columns seen [B, To] and acted
        [B, To-1+Tp], and the mask of these.
        """
        dataset = self._dataset
        row, step = dataset.episodes_of(index)
        length = dataset.index.length[row][:, None]
        seen, acted, inside = window_indices(step, length, dataset.shape, np)
        start = dataset.cached.numbers.starts[row][:, None]
        return row, start + seen, start + acted, inside

    def _replaced(self, index: np.ndarray) -> tuple[np.ndarray, int]:
        """`index` with unreadable windows replaced as `skip_corrupt.finished` does, and how many
        were readable; 0: there is nothing to replace them by.
        """
        _, seen, _, _ = self._steps(index)
        damaged = sum(column.damaged[seen].any(1) for column in self._dataset.cached.columns)
        good = np.flatnonzero(damaged == 0)
        self._counters.damaged.extend(index[damaged > 0].tolist())
        if not len(good):
            return index, 0
        return index[good[np.searchsorted(good, np.arange(len(index))) % len(good)]], len(good)

    def _frames(self, column: Column, seen: np.ndarray) -> torch.Tensor:
        """uint8 [B, To, H, W, 3]."""
        shape, pinned = (*seen.shape, *column.values.shape[1:]), self._batching.pin_memory
        frames = torch.empty(shape, dtype=torch.uint8, pin_memory=pinned)
        rows, out = column.values.reshape(len(column.values), -1), frames.numpy()
        np.take(rows, seen.ravel(), 0, out.reshape(seen.size, -1), "clip")  # "raise" buffers `out`
        return frames

    def _tensor(self, array: np.ndarray) -> torch.Tensor:
        tensor = torch.from_numpy(np.ascontiguousarray(array))
        return tensor.pin_memory() if self._batching.pin_memory else tensor

    def _texts(self, row: int) -> list[str]:
        """The distinct instructions of an episode, in the order of their numbers."""
        texts = bytes(self._dataset.index.texts[row]).split(TEXT_END)
        return [text.decode("utf-8", "replace") for text in texts]
