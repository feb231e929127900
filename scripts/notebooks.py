"""`python -m scripts.notebooks [FILE...]` runs the notebooks and stores their outputs in them.

Without FILE: those of docs/notebooks. What differs from machine to machine is replaced in the
outputs: folders, times, host name and process ids.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from robomimic_ddp.config import env

ROOT = Path(__file__).resolve().parents[1]
STAMP = "20260314093012"
"""In the place of the names of run folders."""
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


def execute(path: Path, folder: Path) -> Any:
    """The notebook at `path` with new outputs; its files are in `folder`. Raises CellExecutionError
    at the first cell that fails.
    """
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=600,
        coalesce_streams=True,
        record_timing=False,
        resources={"metadata": {"path": str(folder)}},
    )
    own = env.child_environment([str(ROOT)])
    own |= {"TMPDIR": str(folder), "IPYTHONDIR": str(folder / "ipython")}
    client.execute(env=own)
    for text in texts(notebook):
        text["text"] = scrubbed(text["text"], folder)
    return notebook


def texts(notebook: Any) -> Iterator[Any]:
    """The outputs of a notebook that are text: dictionaries with `text`."""
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            if "text" in output:
                yield output


def scrubbed(text: str, folder: Path) -> str:
    """`text` without what only this machine has."""
    text = text.replace(sys.executable, "python")
    for path in (folder, ROOT, Path(sys.prefix), Path.home()):
        text = re.sub(rf"{re.escape(str(path))}(/\w+_\w{{8}}(?=/))?", "...", text)
    text = re.sub(rf"\b{re.escape(env.host_name())}\b", "node0", text)
    text = re.sub(r"\b20\d{12}\b", STAMP, re.sub(r"\bpid \d+", "pid 1", text))
    return re.sub(r"(?<=tfevents\.)\d+", "1", text)


def main() -> None:
    """Runs and stores each notebook."""
    import nbformat

    parser = argparse.ArgumentParser(prog="python -m scripts.notebooks", description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, default=NOTEBOOKS, metavar="FILE")
    for path in parser.parse_args().files:
        with tempfile.TemporaryDirectory(prefix="notebooks_") as folder:
            notebook = execute(path, Path(folder))
        nbformat.write(notebook, path)
        print(f"{path}: {os.path.getsize(path) / 1000:.0f} kB", flush=True)


if __name__ == "__main__":
    main()
