"""`robomimic-ddp COMMAND`: wrong paths, damaged checkouts, no permission, bad runs to plot."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import pytest

from robomimic_ddp.commands.plot import plot
from robomimic_ddp.errors import DataError
from robomimic_ddp.monitoring.records.history import FILE_NAME
from robomimic_ddp.patches import commands as patches
from robomimic_ddp.patches import record
from tests.patches.support import snapshot, write_host
from tests.ranks.bad_disks import too_large

pytestmark = pytest.mark.bad_input


@dataclass(frozen=True)
class Row:
    """`spoil(package)` on a fresh small host in folder/checkout; then each command must fail with
    `code` and an error that has `words`. `arguments`: in place of the checkout's path.
    """

    name: str
    spoil: Callable[[Path], object]
    commands: tuple[str, ...]
    code: int
    words: tuple[str, ...]
    arguments: tuple[str, ...] = ("{folder}/checkout",)


ALL = ("status", "diff", "apply", "revert")
TWO = ("status", "apply")


def nothing(package: Path) -> None:
    """A sound checkout."""


def replaced(name: str, old: str, new: str) -> Callable[[Path], object]:
    def change(package: Path) -> None:
        path = package / name
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))

    return change


def appended(name: str, data: bytes) -> Callable[[Path], object]:
    return lambda package: (package / name).write_bytes((package / name).read_bytes() + data)


def emptied(package: Path) -> None:
    (package / "utils/train_utils.py").write_bytes(b"")


def linked_to_nowhere(package: Path) -> None:
    (package / "utils/train_utils.py").unlink()
    (package / "utils/train_utils.py").symlink_to("gone.py")


def damaged_record(content: str) -> Callable[[Path], object]:
    return lambda package: (package / record.NAME).write_text(content)


CHECKOUT = "{folder}/checkout"
PATHS = (
    ("a file", ("{folder}/cli.txt",), ("cli.txt is a file", "give the folder")),
    ("an empty argument", ("",), ("no such file or folder", "''")),
    ("a folder inside", ("{folder}/checkout/robomimic/algo",), ("did you mean",)),
    ("two checkouts", ("{folder}/several",), ("several", "other")),
)
SOURCES = (
    (
        "a syntax error",
        replaced("scripts/train.py", "def train(config, device):", "def train(config, device:"),
        ("scripts/train.py:", "not valid Python"),
    ),
    (
        "not UTF-8",
        appended("utils/torch_utils.py", b"# caf\xe9\n"),
        ("utils/torch_utils.py", "Python"),
    ),
    ("an emptied file", emptied, ("the host needs the area", "by hand")),
)
OUTSIDE = {"format": 1, "files": {"../x": {"original": None, "patched_sha256": ""}}}
VERSION_99 = json.dumps({"format": 99, "files": {}})
RECORDED = ("status", "apply", "revert")
ROWS = (
    Row("missing path", nothing, ALL, 2, ("none", "no such file or folder"), ("{folder}/none",)),
    *(Row(name, nothing, TWO, 2, words, arguments) for name, arguments, words in PATHS),
    *(Row(name, spoil, TWO, 1, words) for name, spoil, words in SOURCES),
    Row(
        "an unknown fixer",
        nothing,
        TWO,
        2,
        ("Did you mean nets_dict", "robomimic-ddp status lists them"),
        (CHECKOUT, "--without", "net_dict"),
    ),
    Row("a name too long", nothing, TWO, 1, ("File name too long",), ("n" * 300,)),
    Row("a link to nowhere", linked_to_nowhere, TWO, 2, ("no robomimic-style package",)),
    Row("a damaged record", damaged_record("{"), RECORDED, 1, ("is damaged",)),
    Row(
        "a record of another version",
        damaged_record(VERSION_99),
        RECORDED,
        1,
        ("format 99", "another version"),
    ),
    Row(
        "a record that leaves the package",
        damaged_record(json.dumps(OUTSIDE)),
        ("apply", "revert"),
        1,
        ("is damaged", "../x"),
    ),
)
PLOTS = (
    ("no epoch yet", "{folder}/young", ("no training epoch yet",)),
    ("damaged", "{folder}/damaged", ("line 1", "is not a record")),
    ("not text", "{folder}/binary", (FILE_NAME, "UTF-8")),
    ("no ending", "{folder}/run -o {folder}/curves", ("is not supported", "-o curves.png")),
    ("onto a folder", "{folder}/run -o {folder}/empty.png", ("empty.png", "cannot be written")),
)
PLOT_ROWS = (
    Row("plot: no run", nothing, ("plot",), 2, ("RUN_DIR",), ()),
    *(
        Row(
            f"plot: {name}",
            nothing,
            ("plot",),
            2,
            (name, "is not a folder"),
            (f"{{folder}}/{name}",),
        )
        for name in ("none", "cli.txt")
    ),
    *(Row(f"plot: {row[0]}", nothing, ("plot",), 1, row[2], row[1].split()) for row in PLOTS),
)
HISTORIES = {
    "run": b'{"epoch": 1, "phase": "train", "samples_per_second": 1.0, "log": {"Loss": 1.0, '
    b'"Optimizer/policy0_lr": 0.1}}\n',
    "young": b'{"epoch": 1, "phase": "valid", "samples_per_second": 0.0, "log": {}}\n',
    "damaged": b"not JSON\n{}\n",
    "binary": b"\xff\xfe\x00\x01\n",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkout, an empty folder, a file, and runs in various states."""
    write_host(tmp_path / "checkout")
    for name in ("one", "other"):
        write_host(tmp_path / "several" / name)
    for name in ("empty", "empty.png", *HISTORIES):
        (tmp_path / name).mkdir()
    for name, content in HISTORIES.items():
        (tmp_path / name / FILE_NAME).write_bytes(content)
    (tmp_path / "cli.txt").write_text("a file")
    return tmp_path


@pytest.mark.parametrize(
    ("row", "name"),
    [(row, name) for row in (*ROWS, *PLOT_ROWS) for name in row.commands],
    ids=lambda value: value.name if isinstance(value, Row) else value,
)
def test_one_clear_error(row: Row, name: str, folder: Path, command) -> None:
    row.spoil(folder / "checkout" / "robomimic")
    before = snapshot(folder)
    code, out, err = command(name, *(text.format(folder=folder) for text in row.arguments))
    shown = out + err if name == "status" else err
    assert code == row.code, shown
    assert not [word for word in row.words if word not in shown], shown
    assert "Traceback" not in shown and shown.count("robomimic-ddp: ") <= 1
    assert snapshot(folder) == before


def test_a_half_patched_checkout_is_completed_and_given_back(folder: Path, command) -> None:
    """As after a merge that took one of our files and not the other."""
    package = folder / "checkout" / "robomimic"
    plain = snapshot(package)
    assert command("apply", folder / "checkout")[0] == 0
    (package / "utils/train_utils.py").write_bytes(plain["utils/train_utils.py"][0])
    code, out, _ = command("status", folder / "checkout")
    assert code == 0 and "partly patched: apply would edit 1 file." in out
    assert command("apply", "--check", folder / "checkout")[0] == 1
    assert command("apply", folder / "checkout")[0] == 0
    assert command("revert", folder / "checkout")[0] == 0
    assert snapshot(package) == plain


@pytest.mark.parametrize("name", ["apply", "revert"])
def test_a_read_only_checkout(name: str, folder: Path, command) -> None:
    package = folder / "checkout" / "robomimic"
    if name == "revert":
        assert command("apply", package)[0] == 0
    before = snapshot(package)
    folders = [path for path in (package, *package.rglob("*")) if path.is_dir()]
    for path in folders:
        path.chmod(0o555)
    try:
        code, out, err = command(name, package)
        assert (code, out) == (1, "")
        assert str(package) in err and "Nothing was written" in err and "is read-only" in err
        assert name == "revert" or "-m robomimic_ddp run MODULE" in err, "the way around"
        assert snapshot(package) == before
    finally:
        for path in folders:
            path.chmod(0o755)


def test_a_file_that_may_not_be_read(folder: Path, command) -> None:
    """A disk's fault, which the super-user has too: this file can be opened and not be read."""
    path = folder / "checkout" / "robomimic" / "utils/torch_utils.py"
    path.unlink()
    path.symlink_to("/proc/self/mem")
    code, _, err = command("apply", folder / "checkout")
    assert code == 1 and str(path) in err and "cannot be read" in err and "Traceback" not in err


def test_an_output_that_cannot_be_written(folder: Path) -> None:
    """A full disk under `> FILE`: with Python's buffer, and without it."""
    buffering = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
    for buffered in ((), ("-u",)):
        with open("/dev/full", "w") as full:
            done = subprocess.run(
                [sys.executable, *buffered, "-m", "robomimic_ddp", "status", "checkout"],
                cwd=folder,
                env=buffering,
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
                timeout=60,
            )
        error = "robomimic-ddp: the output cannot be used: No space left on device. Free disk sp"
        assert done.returncode == 1 and error in done.stderr, done.stderr
        assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr


@pytest.mark.parametrize(
    ("name", "message"),
    [("/a/b", "/a/b cannot be used: Input/output error. Free"), (None, "[Errno 5] Input/output")],
)
def test_another_file_that_cannot_be_written(name, message, folder, command, monkeypatch) -> None:
    """Its error may not name it, and stdout is not to blame."""
    error = OSError(errno.EIO, os.strerror(errno.EIO), name)
    monkeypatch.setattr(patches, "run", mock.Mock(side_effect=error))
    code, _, err = command("status", folder / "checkout")
    assert code == 1 and f"robomimic-ddp: {message}" in err


def test_a_closed_output(folder: Path) -> None:
    line = f"{sys.executable} -m robomimic_ddp status {folder / 'checkout'} >&-"
    done = subprocess.run(line, shell=True, stderr=subprocess.PIPE, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("old", [None, b"an older picture"])
def test_a_disk_that_fills_while_a_picture_is_written(old: bytes | None, folder: Path) -> None:
    picture = folder / "curves.png"
    if old is not None:
        picture.write_bytes(old)
    before = sorted(folder.iterdir())
    with too_large(folder), pytest.raises(DataError, match="File too large"):
        plot([str(folder / "run")], str(picture))
    assert sorted(folder.iterdir()) == before and (old is None or picture.read_bytes() == old)
