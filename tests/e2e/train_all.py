"""Trains with several configurations one after the other, in one process, with the host's `main`.

    python -m tests.e2e.train_all a.json b.json     # prints one line for each: name, "ok" or error

A host takes seconds to import and hundredths of a second for a tiny step; `train()` seeds
everything at its start, so that one process gives the same bits as several.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import robomimic.scripts.train as host_train

FINISHED = "finished run successfully!"


def train(config: str) -> str:
    """Trains with one configuration; returns "ok" or what went wrong."""
    arguments = argparse.Namespace(
        config=config, algo=None, name=None, dataset=None, debug=False, resume=False
    )
    printed = io.StringIO()
    try:
        with redirect_stdout(printed), redirect_stderr(printed):
            host_train.main(arguments)
    except (Exception, SystemExit) as error:
        return f"{type(error).__name__}: {error}\n{printed.getvalue()[-2000:]}"
    text = printed.getvalue()
    log = "".join(path.read_text() for path in _output(config).rglob("log.txt"))
    return "ok" if FINISHED in text + log else text[-2000:] or log[-2000:]


def _output(config: str) -> Path:
    return Path(json.loads(Path(config).read_text())["train"]["output_dir"])


if __name__ == "__main__":
    results = {Path(config).stem: train(config) for config in sys.argv[1:]}
    print(json.dumps(results))
