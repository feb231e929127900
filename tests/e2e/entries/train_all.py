"""Trains with several configurations one after the other, in one process, with the host's `main`.

    python -m tests.e2e.entries.train_all a.json b.json   # prints a line for each: its result

A host takes seconds to import and hundredths of a second for a tiny step; `train()` seeds
everything at its start, so that one process gives the same bits as several.
"""

from __future__ import annotations

import io
import json
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from tests.e2e.entries import host_entry
from tests.hosts import FINISHED


def train(config: str) -> str:
    """Train with one configuration; return "ok" or what went wrong."""
    printed = io.StringIO()
    try:
        with redirect_stdout(printed), redirect_stderr(printed):
            host_entry.train(config)
    except (Exception, SystemExit) as error:
        return f"{type(error).__name__}: {error}\n{printed.getvalue()[-2000:]}"
    output = Path(json.loads(Path(config).read_text())["train"]["output_dir"])
    log = "".join(path.read_text() for path in output.rglob("log.txt"))
    text = printed.getvalue()
    return "ok" if FINISHED in text + log else text[-2000:] or log[-2000:]


if __name__ == "__main__":
    results = {Path(config).stem: train(config) for config in sys.argv[1:]}
    print(json.dumps(results))
