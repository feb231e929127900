"""Files of strangers: pipes, links, 100 MB, depth and aliases are one error each, at once."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from robomimic_ddp import cli, files
from robomimic_ddp.checkpoint import run_record, state_file, take
from robomimic_ddp.commands.sweep import study
from robomimic_ddp.config import option_values
from robomimic_ddp.config.host import json_config
from robomimic_ddp.data.rlds.index import prepared, source
from robomimic_ddp.data.rlds.schema.spec import load_schema
from robomimic_ddp.errors import (
    ConfigError,
    DataError,
    PatchError,
    RobomimicDDPError,
    WriteError,
)
from robomimic_ddp.monitoring.records import heartbeat, history, run_files, run_summary
from robomimic_ddp.patches import record
from robomimic_ddp.verify.code_versions import source_digest
from tests.checkpoint import small
from tests.heartbeats import beat
from tests.patches.support import snapshot

pytestmark = [pytest.mark.bad_input, pytest.mark.timeout(60)]

DEEP = 100_000
JSON = {
    "deep lists": ("[" * DEEP, "recursion"),
    "a key twice": ('{"a": 1, "a": 2}', "'a' twice"),
    "a long number": ("1" * 10_000, r"4300 digits|limit \(4300\)"),
}
LAUGHS = "".join(f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12))
YAML = {
    "aliases": ("a0: &a0 [lol]\n" + LAUGHS, "alias"),
    "an anchor in itself": ("&a [*a]", "alias"),
    "deep lines": ("- " * 20_000, "recursion"),
    "a null key": ("null: 1", "key None"),
    "a list as key": ("? [a]\n: 1", "expected text"),
    "a key twice": ("a: 1\na: 2", "'a' twice"),
    "a tag": ("a: !!python/object/apply:os.getcwd []", "tag"),
}


@pytest.mark.parametrize(("text", "words"), JSON.values(), ids=JSON)
def test_json(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        files.parse_json(text)


@pytest.mark.parametrize(("text", "words"), YAML.values(), ids=YAML)
def test_yaml(text: str, words: str, tmp_path: Path) -> None:
    assert option_values.convert(dict, text) is None
    (tmp_path / "schema.yaml").write_text(text)
    with pytest.raises(ConfigError, match=f"schema.yaml cannot be read as YAML: .*{words}"):
        load_schema(str(tmp_path / "schema.yaml"))


def pipe(path: Path) -> None:
    os.mkfifo(path)


def large(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(300 * 2**20)


def loop(path: Path) -> None:
    path.symlink_to(path.name)


def deep(path: Path) -> None:
    path.write_text("[" * DEEP)


@pytest.mark.parametrize("make", [pipe, large, loop, deep])
def test_every_reader_has_one_error(make, tmp_path: Path) -> None:
    def put(name: str) -> Path:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        make(tmp_path / name)
        return tmp_path / name

    with pytest.raises(ConfigError, match="could not be read as JSON"):
        json_config.read_json(put("config.json"), "--config ")
    with pytest.raises(DataError):
        prepared.read(put("set/metadata.json").parent)
    with pytest.raises(DataError, match="damaged files only"):
        heartbeat.read(put("run/heartbeats/rank0.json").parents[1])
    with pytest.raises(PatchError, match="is damaged"):
        record.load(put(f"host/{record.NAME}").parent)
    assert run_record.read_record(put("run/ddp.json").parent) is None
    if make is not deep:
        put("host/train.py")
        assert source_digest(tmp_path / "host") == source_digest(tmp_path / "set")


@pytest.fixture
def host(tmp_path: Path) -> Path:
    from tests.patches.support import write_host

    return write_host(tmp_path / "repository")


@pytest.mark.parametrize("name", ["scripts/train_rlds.py", "algo/x.py"])
def test_pipes_and_links_named_as_sources_hang_no_command(name: str, host: Path, command) -> None:
    pipe(host / name)
    (host / "utils/gone.py").symlink_to("nowhere.py")
    before = snapshot(host)
    code, _, err = command("apply", host)
    if name == "scripts/train_rlds.py":  # `apply` would add it
        assert code == 1 and "is a pipe" in err and snapshot(host) == before
        return
    assert command("apply", "--check", host)[0] == command("status", host)[0] == 0
    assert command("revert", host)[0] == 0
    assert snapshot(host) == before


def test_a_plan_of_impossible_numbers_is_not_shown(tmp_path: Path) -> None:
    shown = []
    for samples in (8, 10**400):
        plan = {"plan": {"samples_per_step": samples}}
        (tmp_path / run_files.RECORD).write_text(json.dumps(plan))
        shown.append("samples/s" in "".join(run_summary.lines(tmp_path, [beat(time=1.0)], 2.0)))
    assert shown == [True, False]


def link(path: Path, target: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    path.symlink_to(target)


@pytest.mark.parametrize("target", ["file", "nothing"])
def test_what_a_run_writes_follows_no_link_under_its_name(target: str, tmp_path: Path) -> None:
    target = tmp_path / target
    (tmp_path / "file").write_text("the user's")
    run = tmp_path / "run"
    for name in (run_files.LOCK, history.FILE_NAME, run_files.RECORD, run_files.REQUEUE):
        link(run / name, target)
    link(run / heartbeat.FOLDER / "rank0.tmp", target)
    with pytest.raises(WriteError):
        take(run)
    with pytest.raises(OSError):
        history.append(run, {})
    run_record.RunRecord(run, {}).write()
    run_record.write_requeue(run, {})
    heartbeat.Heartbeat(run, 0, 1, "cpu", lambda: 0).write()
    assert heartbeat.read(run) and (tmp_path / "file").read_text() == "the user's"
    assert not (tmp_path / "nothing").exists()


def convert(path: Path) -> None:
    command = ["ckpt", "convert", small.write(path.parent / "a.pth"), "-o", path]
    assert cli.main([*map(str, command)]) == 2  # there is something
    assert cli.main([*map(str, command), "--force"]) == 0


def picture(path: Path) -> None:
    record = {"epoch": 1, "phase": "train", "samples_per_second": 1.0, "log": {"Loss": 1.0}}
    (path.parent / history.FILE_NAME).write_text(json.dumps(record) + "\n")
    assert cli.main(["plot", str(path.parent), "-o", str(path)]) == 1


def a_state(path: Path) -> None:
    state_file.write(path.parent, {}, best=True)
    state_file.write(path.parent, {}, best=True)


def a_sweep(path: Path) -> None:
    with suppress(RobomimicDDPError):
        study.Sweep(path.parent)


WRITERS = {
    state_file.STATE: a_state,
    state_file.PREVIOUS: a_state,
    state_file.BEST: a_state,
    "out.pth": convert,
    "curves.png": picture,
    study.JOURNAL: a_sweep,
}


@pytest.mark.parametrize("target", ["file", "nothing"])
@pytest.mark.parametrize(("name", "write"), WRITERS.items(), ids=WRITERS)
def test_what_a_command_writes_follows_no_link(name, write, target, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("the user's")
    link(tmp_path / "run" / name, tmp_path / target)
    write(tmp_path / "run" / name)
    assert (tmp_path / "file").read_text() == "the user's"
    assert not (tmp_path / "nothing").exists()


@pytest.mark.parametrize("make", [pipe, large])
def test_what_other_libraries_read_is_limited(make: Callable, tmp_path: Path) -> None:
    """Optuna and tensorflow-datasets would read what a sparse file stands for."""
    make(tmp_path / study.JOURNAL)
    with pytest.raises(DataError, match=study.JOURNAL):
        study.Sweep(tmp_path)
    (tmp_path / "features.json").write_text("{}")
    make(tmp_path / source.INFO_FILE)
    with pytest.raises(DataError, match="MiB" if make is large else "is a pipe"):
        _ = source.Source(tmp_path).builder


def test_a_pipe_under_the_name_of_a_file_of_ours_stops_nobody(tmp_path: Path) -> None:
    for name in (run_files.LOCK, history.FILE_NAME):
        pipe(tmp_path / name)
    with pytest.raises(WriteError, match="is a pipe: a file is needed"):
        take(tmp_path)
    with pytest.raises(OSError, match="pipe|No such device"):
        history.append(tmp_path, {})
    with pytest.raises(DataError, match="is a pipe: a file is needed"):
        history.read(tmp_path)


def test_of_a_large_log_the_end_is_read(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as file:
        file.truncate(2**40)
        file.seek(0, os.SEEK_END)
        file.write(b"\xff\nthe last line")
    assert files.read_end(tmp_path / "log").splitlines()[-1] == "the last line"
    pipe(tmp_path / "pipe")
    with pytest.raises(OSError, match="is a pipe"):
        files.read_end(tmp_path / "pipe")


@pytest.mark.parametrize(
    ("words", "imports_from_here"),
    [
        (["ckpt", "show", "a.pth"], False),
        (["plot", "a"], False),
        (["watch", "a"], False),
        (["sweep", "show", "a"], False),
        (["inspect-data", "a"], False),
        (["inspect-data", "--config", "a.json"], True),
        (["prepare-data", "a", "b", "--size", "8x8"], False),
        (["evaluate", "a"], True),
        (["sweep", "run", "a"], True),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, list) else "",
)
def test_what_shows_files_imports_nothing_from_the_current_folder(
    words: list[str], imports_from_here: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Next to a downloaded checkpoint there may be a torch.py."""
    monkeypatch.setattr("sys.path", ["/bin", *sys.path])
    monkeypatch.setattr(cli._module(words[0]), "run", lambda *_: int(sys.path[0] == ""))
    assert cli.main(words) == imports_from_here
