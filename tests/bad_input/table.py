"""What a row of the table is: a name, how the bad input is made, and what the error must say."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.configs import make_config, write_config
from tests.datasets import make_hdf5

TIMED_OUT = 124
"""The exit code of a case that did not end by itself."""
NAMES = {
    "spaces, quotes, a newline": 'my data\'s "set"\nof two lines',
    "dashes, unicode": "--config=x -rf données-データ-🤖",
    "commands": "$(touch executed)`touch executed`; touch executed;",
    "references, patterns": "${train.seed} $HOME [x]{y}*?\\#b%s{0}",
}
"""Odd but legal names of files."""


@dataclass(frozen=True)
class Place:
    """The files of one case: `folder` is private to it; datasets in `shared` must not change."""

    folder: Path
    shared: Path

    @property
    def hdf5(self) -> Path:
        """A sound dataset without pictures."""
        return self.shared / "low_dim.hdf5"

    def config(self, changes: Mapping[str, Any] | None = None, data: Path | None = None) -> Path:
        """A small diffusion policy's config with nested `changes`; runs go to `folder`/runs."""
        config = make_config("diffusion_policy", data or self.hdf5, self.folder / "runs", changes)
        return write_config(self.folder / "config.json", config)

    def own_hdf5(self, change: Callable[[Any], None] | None = None, **options: Any) -> Path:
        """A dataset of this case's own, after `change(h5py.File)`."""
        import h5py

        path = make_hdf5(self.folder / "data.hdf5", **options)
        if change is not None:
            with h5py.File(path, "r+") as file:
                change(file)
        return path


@dataclass(frozen=True)
class Case:
    """`make(place)` writes the bad input and returns the dot-list; the error has all `words`.

    environ: variables of the process; entry: "train_rlds" or "train" (one config file); late: it
    can only be seen once the run directory is there.
    """

    name: str
    make: Callable[[Place], list[str]]
    words: tuple[str, ...]
    environ: Mapping[str, str] = field(default_factory=dict)
    entry: str = "train_rlds"
    late: bool = False


def dotlist(*arguments: str, **sections: Any) -> Callable[[Place], list[str]]:
    """The sound config file with nested changes in `sections`, and `arguments` over it."""
    return lambda place: [f"load_from={place.config(sections)}", *arguments]


@dataclass(frozen=True)
class Outcome:
    """How a case ended; `files`: what its folder held before, and after."""

    code: int
    stdout: str
    stderr: str
    before: Mapping[str, str]
    after: Mapping[str, str]


def contents(folder: Path) -> dict[str, str]:
    """Path -> digest of every file, and "" for every folder, below `folder`."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        if path.is_file()
        else ""
        for path in sorted(folder.rglob("*"))
    }


def require_one_clear_error(case: Case, outcome: Outcome) -> None:
    """Non-zero, one error with all words of the case, nothing overwritten and no run begun."""
    shown = f"{case.name}: exit code {outcome.code}\n{outcome.stderr[-3000:]}"
    assert outcome.code not in (0, TIMED_OUT), f"{shown}\n{outcome.stdout[-2000:]}"
    assert "Traceback" not in outcome.stderr, shown
    assert outcome.stderr.count("error: ") == 1, shown
    error = outcome.stderr[outcome.stderr.index("error: ") :]
    assert not [word for word in case.words if word not in error], shown
    changed = [name for name, digest in outcome.before.items() if outcome.after.get(name) != digest]
    assert not changed, f"{case.name} changed {changed}"
    if not case.late:
        assert outcome.after == outcome.before, sorted(set(outcome.after) - set(outcome.before))
