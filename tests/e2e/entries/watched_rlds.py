"""Runs the dot-list entry on RLDS data and writes down what this rank did.

    torchrun ... -m tests.e2e.entries.watched_rlds REPORTS load_from=cfg.json key=value ...

Writes REPORTS/rank<k>.json after a run that ended well; the edited host runs as it stands.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import robomimic.scripts.train as host_train
import robomimic.scripts.train_rlds as entry

from robomimic_ddp.data.rlds.loaders import make
from robomimic_ddp.data.rlds.loaders.remote import reader_of_rank
from tests.e2e.entries.watched_train import RANK, Watch, around

LIBRARIES = ("_pywrap_tensorflow", "libtorch", "simplejpeg", "/dev/shm")


def mapped(process: str) -> list[str]:
    """Those of LIBRARIES that a process has loaded or uses."""
    maps = Path("/proc", process, "maps").read_text()
    return [name for name in LIBRARIES if name in maps]


class RLDSWatch(Watch):
    """As for HDF5; the windows are read from the batches, the frames from the loaders."""

    def __init__(self) -> None:
        super().__init__("none")
        self.valid_indices: list[int] = []
        self.loaders: dict[str, Any] = {}

    def install(self) -> None:
        around(host_train, "algo_factory", self.construct)
        around(host_train.TrainUtils, "run_epoch", self.epoch)
        around(make, "make_loader", self.keep)

    def keep(self, make_loader: Callable, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        self.loaders[dataset.role] = make_loader(dataset, *args, **kwargs)
        return self.loaders[dataset.role]

    def construct(self, factory: Callable, *args: Any, **kwargs: Any) -> Any:
        model = super().construct(factory, *args, **kwargs)
        around(model, "process_batch_for_training", self.batch)
        return model

    def batch(self, process: Callable, batch: Any) -> Any:
        seen = self.indices if self.model.nets.training else self.valid_indices
        seen.extend(batch["index"].tolist())
        return process(batch)

    def report(self) -> dict[str, Any]:
        loader, decoded = self.loaders["train"], -1
        while loader.frames_decoded != decoded:  # until nothing is made ahead any more
            decoded = loader.frames_decoded
            time.sleep(0.5)
        return {
            **super().report(),
            "valid_indices": self.valid_indices,
            "windows": len(loader.dataset),
            "valid_windows": len(self.loaders["valid"].dataset),
            "frames_decoded": decoded,
            "frames_delivered": loader.frames_delivered,
            "frames_prefetched": loader.frames_prefetched,
            "libraries": [mapped(process) for process in ("self", str(reader_of_rank().pid))],
        }


def main() -> None:
    reports = Path(sys.argv.pop(1))
    watch = RLDSWatch()
    watch.install()
    entry.main()
    reports.mkdir(exist_ok=True)
    (reports / f"rank{RANK}.json").write_text(json.dumps(watch.report()))


if __name__ == "__main__":
    main()
