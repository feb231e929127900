"""The host's own entry, as its command line calls it."""

from __future__ import annotations

import argparse
from pathlib import Path

import robomimic.scripts.train as host_train


def train(config: str | Path, resume: bool = False) -> None:
    """Train with the config, as `python -m robomimic.scripts.train --config ...` does."""
    flags = {"algo": None, "name": None, "dataset": None, "debug": False, "resume": resume}
    host_train.main(argparse.Namespace(config=config, **flags))
