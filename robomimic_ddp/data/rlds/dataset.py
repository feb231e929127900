"""An RLDS dataset: its windows, its statistics, and what each rank reads in each pass."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from robomimic_ddp.data.language.embeddings import Embeddings
from robomimic_ddp.data.rlds.index import normalization, prepared
from robomimic_ddp.data.rlds.index.example import EpisodeParser
from robomimic_ddp.data.rlds.index.records import step_features_read
from robomimic_ddp.data.rlds.index.source import Source
from robomimic_ddp.data.rlds.index.statistics import Index, joined
from robomimic_ddp.data.rlds.order.windows import WindowShape, windows_per_pass
from robomimic_ddp.data.rlds.pipeline.settings import WindowSettings
from robomimic_ddp.data.rlds.schema.actions import split_by_key
from robomimic_ddp.data.rlds.schema.features import flat_features
from robomimic_ddp.data.rlds.schema.fields import Fields
from robomimic_ddp.data.rlds.window_table import WindowTable


@dataclass(frozen=True)
class LoadOptions:
    """Config of the loader; see `rlds_keys.DEFAULTS`. host_batch_size: train.batch_size, in which
    validation steps are counted.
    """

    shuffle_buffer_size: int = 100_000
    subsample_length: int | None = None
    num_parallel_calls: int | None = None
    host_batch_size: int | None = None


class RLDSDataset:
    """Windows of the episodes `rows` of a dataset, without frames. Equal on all ranks. all_rows:
    the episodes that statistics cover, so that training and validation are normalised alike.
    """

    is_rlds = True
    """Marks that `make.make_loader` makes the loader."""

    def __init__(
        self,
        source: Source,
        fields: Fields,
        index: Index,
        rows: np.ndarray,
        all_rows: np.ndarray,
        shape: WindowShape,
        size: tuple[int, int],
        action_config: Mapping[str, Any],
        options: LoadOptions,
        role: str = "train",
    ):
        self.source, self.fields, self.index = source, fields, index
        self.rows, self.all_rows = rows, all_rows
        self.shape, self.size, self.options = shape, size, options
        self.action_config, self.role = action_config, role
        self.normalised_with: Sequence[RLDSDataset] = (self,)
        """The datasets whose statistics are merged: all of a mixture."""
        self.embeddings: Sequence[Embeddings] = ()
        """Embeddings of the instructions, one for each observation key that is an embedding."""
        every_count = shape.count(index.length)
        self._every_end = np.cumsum(every_count)
        self._begin = self._every_end - every_count
        self.windows_of_all = int(every_count.sum())
        """Windows of all episodes, used or not: one more than the largest `index`."""
        counts = every_count[rows]
        per_pass = windows_per_pass(counts, options.subsample_length)
        self.table = WindowTable(
            index.file[rows], index.offset[rows], counts, per_pass, self._begin[rows]
        )

    def __len__(self) -> int:
        """Return the windows in a pass."""
        return int(self.table.per_pass.sum())

    @property
    def name(self) -> str:
        """Its path, for messages."""
        return str(self.source.folder)

    @property
    def prepared(self) -> str | None:
        """Where it comes from and how images are stored, if `prepare-data` has written it."""
        notes = self.source.prepared
        return notes and prepared.described(notes, self.size)

    def __repr__(self) -> str:
        shown = {
            "path": self.source.folder,
            "episodes": f"{len(self.rows)} of {len(self.index.length)}",
            "windows": len(self),
            "files": len(self.source.files),
            "cameras": f"{tuple(self.fields.images)} at {self.size[0]}x{self.size[1]}",
            "states": tuple(self.fields.low_dim),
            "actions": tuple(self.fields.actions),
            "frame_stack": self.shape.frame_stack,
            "seq_length": self.shape.seq_length,
        }
        return "RLDSDataset (\n\t" + "\n\t".join(f"{k}={v}" for k, v in shown.items()) + "\n)"

    def episode_of(self, window: int) -> tuple[int, int]:
        """Return the row of the index and the step of the window with the number `window`."""
        row = int(np.searchsorted(self._every_end, window, "right"))
        return row, int(window - self._begin[row]) + self.shape.first

    def describe_episode(self, row: int) -> str:
        """Return the file and record of episode `row` of the index, for messages."""
        file = self.index.file[row]
        number = row - int(np.searchsorted(self.index.file, file))
        return f"{self.source.files[file]}: episode {number} at byte {self.index.offset[row]}"

    def get_dataset_sampler(self) -> None:
        """Return None: the order comes from the loader, not from a sampler of indices."""

    def get_action_stats(self) -> OrderedDict:
        """Return {action key: n, and mean, sqdiff, min, max float64 [1, D]} over all steps."""
        merged = self._merged("actions")
        parts = {
            name: split_by_key(value, self.fields.actions)
            for name, value in merged.items()
            if name != "n"
        }
        return OrderedDict(
            (key, {"n": merged["n"], **{name: parts[name][key] for name in parts}})
            for key in self.fields.actions
        )

    def get_action_normalization_stats(self) -> OrderedDict:
        """Return {action key: {"scale", "offset"}}, float32 [1, D], of the normalisation."""
        return normalization.action_normalization(self.get_action_stats(), self.action_config)

    def get_obs_normalization_stats(self) -> dict[str, dict[str, np.ndarray]]:
        """Return {obs key: {"scale", "offset"}}, float32 [1, ...]; 1 and 0 for cameras."""
        stats = normalization.state_normalization(
            self._merged("states"), self.fields.low_dim_shapes
        )
        unchanged = {table.key: (1, table.width) for table in self.embeddings}
        unchanged.update(dict.fromkeys(self.fields.images, (1, 3, *self.size)))
        for key, shape in unchanged.items():
            stats[key] = {
                "offset": np.zeros(shape, np.float32),
                "scale": np.ones(shape, np.float32),
            }
        return stats

    def _merged(self, kind: str) -> dict[str, np.ndarray]:
        """Return `Moments.merged` of all steps of `normalised_with`."""
        indices = [dataset.index.select(dataset.all_rows) for dataset in self.normalised_with]
        moments = joined([getattr(index, kind) for index in indices])
        return moments.merged(np.concatenate([index.length for index in indices]))

    @cached_property
    def settings(self) -> WindowSettings:
        """How windows are decoded and normalised."""
        steps = flat_features(self.source.features["steps"].feature)
        stored = {key: tuple(steps[place].shape[:2]) for key, place in self.fields.images.items()}
        names = step_features_read(self.fields, with_images=True)
        scale, offset, limit = normalization.vectors(
            self.get_action_normalization_stats(), self.action_config
        )
        return WindowSettings(
            tuple(str(path) for path in self.source.files),
            EpisodeParser(self.source.features, names),
            self.fields,
            self.shape,
            self.size,
            stored,
            scale,
            offset,
            limit,
        )
