"""One rank: the host's own behaviour; files are whole at every instant; prompts never wait."""

from __future__ import annotations

import contextlib
import errno
import importlib
import io
import os
import pickle
import shutil
import signal
import stat
import sys
from functools import partial
from types import SimpleNamespace
from unittest import mock

import pytest

from robomimic_ddp.distributed import main_rank, quiet_streams
from robomimic_ddp.distributed.atomic_files import atomic_open, copyfile, open_on_main
from robomimic_ddp.distributed.quiet_streams import KeepWarnings, Tee
from robomimic_ddp.errors import WriteError
from robomimic_ddp.monitoring import host_loggers


def names(folder):
    return sorted(os.listdir(folder))


def kill_in_the_middle(path):
    """A fork of this process writes to `path`, and is killed before it has done."""
    reported, tell = os.pipe()
    writer = os.fork()
    if writer == 0:
        try:
            with atomic_open(path, "w") as file:
                file.write("new" * 100_000)
                file.flush()
                os.write(tell, b"in the middle")
                signal.pause()
        finally:
            os._exit(1)
    os.close(tell)  # a writer that fails ends the pipe
    with os.fdopen(reported, "rb") as pipe:
        assert pipe.read(13) == b"in the middle"
        os.kill(writer, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(writer, 0)[1]) == -signal.SIGKILL


def test_a_kill_in_the_middle_of_a_write_leaves_the_previous_file(tmp_path):
    path = tmp_path / "config.json"
    path.write_text("old")
    kill_in_the_middle(path)
    assert path.read_text() == "old"
    assert len(names(tmp_path)) == 2  # and the dead writer's temporary file ...
    with atomic_open(path) as file:
        file.write("newer")
    assert path.read_text() == "newer"
    assert names(tmp_path) == ["config.json"]  # ... which the next write removes
    kill_in_the_middle(tmp_path / "new.json")
    assert not (tmp_path / "new.json").exists()


def test_the_temporary_file_of_a_living_writer_stays(tmp_path):
    path = tmp_path / "file"
    with atomic_open(path) as outer:
        outer.write("outer")
        with atomic_open(path) as inner:
            inner.write("inner")
        assert path.read_text() == "inner"
    assert path.read_text() == "outer"


def test_an_exception_replaces_nothing(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(KeyboardInterrupt):
        with atomic_open(path) as file:
            file.write("new")
            raise KeyboardInterrupt
    assert path.read_text() == "old" and names(tmp_path) == ["file"]


def test_permissions_are_those_of_a_plain_open(tmp_path):
    before = os.umask(0o027)
    try:
        for open_it, name in ((open, "plain"), (atomic_open, "atomic")):
            with open_it(tmp_path / name, "w"):
                pass
    finally:
        os.umask(before)
    plain, atomic = (stat.S_IMODE((tmp_path / n).stat().st_mode) for n in ("plain", "atomic"))
    assert plain == atomic
    (tmp_path / "atomic").chmod(0o604)
    with atomic_open(tmp_path / "atomic"):
        pass
    assert stat.S_IMODE((tmp_path / "atomic").stat().st_mode) == 0o604


def test_modes_links_and_special_files(tmp_path):
    with atomic_open(tmp_path / "bytes", "wb") as file:
        file.write(b"\x00\xff")
    assert (tmp_path / "bytes").read_bytes() == b"\x00\xff"
    with atomic_open(tmp_path / "text", "w", encoding="latin-1", newline="\r\n") as file:
        file.write("é\n")
    assert (tmp_path / "text").read_bytes() == b"\xe9\r\n"
    (tmp_path / "link").symlink_to("text")
    with open_on_main(tmp_path / "link") as file:
        file.write("through")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "text").read_text() == "through"
    with atomic_open(tmp_path / "link") as file:
        file.write("a file of ours")
    assert not (tmp_path / "link").is_symlink()
    assert (tmp_path / "text").read_text() == "through"
    with open_on_main(os.devnull) as file:
        file.write("gone")
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)
    with pytest.raises(FileExistsError), atomic_open(tmp_path / "text", "x"):
        pass
    with pytest.raises(IsADirectoryError), atomic_open(tmp_path, "w"):
        pass
    with pytest.raises(FileNotFoundError), atomic_open(tmp_path / "no" / "file", "w"):
        pass
    for mode in ("a", "r", "r+"):
        with pytest.raises(ValueError, match="whole files"), atomic_open(tmp_path / "text", mode):
            pass


def test_copyfile_is_shutils(tmp_path):
    (tmp_path / "a").write_bytes(os.urandom(3_000_000))
    assert copyfile(tmp_path / "a", tmp_path / "b") == tmp_path / "b"
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    with pytest.raises(shutil.SameFileError):
        copyfile(tmp_path / "a", tmp_path / "a")
    with pytest.raises(FileNotFoundError):
        copyfile(tmp_path / "no", tmp_path / "b")
    assert (tmp_path / "b").stat().st_size == 3_000_000


def test_on_one_rank_everything_is_plain(tmp_path, capsys):
    value = object()
    assert main_rank.on_main(lambda x, y: (x, y), value, y=2) == (value, 2)
    with pytest.raises(KeyError):
        main_rank.on_main({}.__getitem__, "key")
    assert main_rank.agree(value) is value
    assert main_rank.main_rank_only(lambda x: x)(value) is value
    with open_on_main(tmp_path / "file", "w") as file:
        file.write("text")
    assert (tmp_path / "file").read_text() == "text"
    with quiet_streams.quiet_stdout(quiet=False):
        print("seen")
    assert capsys.readouterr().out == "seen\n"


class Terminal(io.StringIO):
    def isatty(self):
        return True


def closed():
    stream = Terminal()
    stream.close()
    return stream


@pytest.mark.parametrize(
    "stdin, answer",
    [(Terminal("y\n"), "y")]
    + [(no, "n") for no in (None, io.StringIO("y\n"), Terminal(""), closed())],
)
def test_only_a_terminal_is_asked_and_else_what_is_there_is_kept(
    stdin, answer, monkeypatch, capsys
):
    monkeypatch.setattr(sys, "stdin", stdin)
    assert main_rank.ask("overwrite? (y/n)\n") == answer
    out = capsys.readouterr().out
    assert "overwrite? (y/n)" in out and ("keeping what is there" in out) is (answer == "n")


class Base:
    def __init__(self, log_file):
        self.terminal = sys.stdout
        self.log_file = open(log_file, "a")


@host_loggers.print_logger
class PrintLogger(Base):
    """As the host's. A host's `super(PrintLogger, self)` names the decorated class."""

    def __init__(self, log_file):
        super(PrintLogger, self).__init__(log_file)  # noqa: UP008

    def write(self, message):
        self.terminal.write(message)
        self.log_file.write(message)
        self.log_file.flush()

    def flush(self):
        self.terminal.flush()


@pytest.mark.parametrize(
    "target, words", [("/dev/full", "No space left on device"), ("gone/log.txt", "could not")]
)
def test_a_log_that_cannot_be_written_is_said_once_and_printing_resumes(
    target, words, tmp_path, capfd
):
    """A file on a full disk, and one that cannot be opened."""
    path, room = tmp_path / "log.txt", tmp_path / "room.txt"
    room.touch()
    path.symlink_to(tmp_path / target)
    with mock.patch.object(sys, "__stderr__", sys.stderr):
        logger = PrintLogger(str(path))
        with contextlib.redirect_stdout(logger):
            print("one")
            print("two")
            path.unlink()
            path.symlink_to(room)  # somebody has freed space
            print("three")
    assert isinstance(logger, PrintLogger) and PrintLogger.__name__ == "PrintLogger"
    printed = capfd.readouterr()
    assert printed.out.split() == ["one", "two", "three"]
    assert printed.err.count("warning:") == 1 and words in printed.err
    assert room.read_text() == "three\n"


def write_config(path):
    with open_on_main(path) as file:
        file.write("new")


def write_backup(path):
    source = path.with_name("source")
    source.write_text("new")
    copyfile(source, path)


@pytest.mark.parametrize("write", [write_config, write_backup])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_what_must_be_written_is_one_error_of_ours(write, code, tmp_path, monkeypatch):
    path = tmp_path / "config.json"
    path.write_text("old")

    def refuse(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(WriteError, match=f"{path} could not be saved: .*untouched") as caught:
        write(path)
    assert isinstance(caught.value, OSError) and path.read_text() == "old"
    assert ("Free disk space" in str(caught.value)) is (code == errno.ENOSPC)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_errors_of_other_files_pass(tmp_path):
    with pytest.raises(FileNotFoundError):
        with open_on_main(tmp_path / "file"):
            open(tmp_path / "other")


def test_the_hosts_advice_about_its_macro_file_is_the_main_ranks(capsys):
    from robomimic.utils import log_utils

    with quiet_streams.quiet_stdout(quiet=True):
        sys.modules.pop("robomimic.macros", None)
        importlib.import_module("robomimic.macros")
        log_utils.log_warning("something else")
    assert "macro file" in log_utils.WARNINGS_BUFFER[-2], "the host has said it"
    error = capsys.readouterr().err
    assert "something else" in error and "macro file" not in error


def test_other_ranks_logs_have_no_title_of_an_empty_list():
    """The host's only warning is the one of its macro file, of which the main rank alone speaks."""
    log = io.StringIO()
    for text in ("Warnings generated by robomimic have been duplicated here.", "a warning"):
        print(text, file=KeepWarnings(log))
    assert log.getvalue() == "a warning\n"


def test_a_pipe_without_a_reader_ends_no_training(tmp_path):
    """As after `tee` was killed: the host's log has the rest, and a warning, once."""
    reader, writer = os.pipe()
    os.close(reader)
    before, log = (sys.stdout, sys.stderr), io.StringIO()
    with open(writer, "w") as pipe, mock.patch.multiple(sys, stdout=pipe, stderr=pipe):
        with quiet_streams.without_errors():
            sys.stderr = Tee(log, sys.stderr)
            for epoch in (1, 2):
                print(f"epoch {epoch}", flush=True)
                print(f"Train Epoch {epoch}", file=sys.stderr)
        assert sys.stdout is pipe
    assert (sys.stdout, sys.stderr) == before
    assert log.getvalue().count("cannot be written: [Errno 32] Broken pipe") == 1
    assert "Train Epoch 2" in log.getvalue()


def test_closed_streams_end_no_training(monkeypatch):
    """As `>&- 2>&-` closes them: the host writes to what it finds as sys.stdout."""
    monkeypatch.setattr(sys, "stdout", None)
    with quiet_streams.without_errors():
        sys.stdout.write("epoch 1")
        sys.stdout.flush()
    assert sys.stdout is None


@pytest.mark.parametrize("make", [lambda kept: KeepWarnings(kept), lambda kept: Tee(kept, kept)])
def test_closing_a_stream_of_ours_leaves_the_real_one_open(make):
    """absl closes, at exit, the stream that it found as sys.stderr."""
    kept = io.StringIO()
    make(kept).close()
    kept.write("still open")


def wandb_logger(macros, facts=dict):
    """Shaped as the host's: it insists on an entity and tries again, with pauses."""

    @partial(host_loggers.data_logger, facts=facts)
    class DataLogger:
        def __init__(self, log_dir, log_tb=True, log_wandb=False):
            self.wandb, self.pauses = None, 0
            if log_wandb:
                import wandb

                assert macros.WANDB_ENTITY is not None
                for attempt in range(10):
                    try:
                        last = attempt == 9
                        mode = "offline" if last else "online"
                        self.wandb = wandb.init(entity=macros.WANDB_ENTITY, dir=log_dir, mode=mode)
                        break
                    except Exception:
                        self.pauses += 1

    return DataLogger


@pytest.mark.parametrize(
    "asked, fail_in, expected",
    [
        (None, (), ["online"]),
        (None, ("online",), ["online", "offline"]),
        ("disabled", (), ["disabled"]),
        ("offline", ("offline",), ["offline", "disabled"]),
    ],
)
def test_wandb_does_as_it_is_asked_and_never_waits(asked, fail_in, expected, monkeypatch, capsys):
    modes = []

    def init(entity, dir, mode, config):
        assert entity is None and config == {}
        modes.append(mode)
        if mode in fail_in:
            raise ConnectionError("no network")
        return mode

    fake, macros = SimpleNamespace(init=init), SimpleNamespace(WANDB_ENTITY=None)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    monkeypatch.setitem(sys.modules, f"{__name__.partition('.')[0]}.macros", macros)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    if asked:
        monkeypatch.setenv("WANDB_MODE", asked)
    logger = wandb_logger(macros)("logs", log_wandb=True)
    assert (logger.wandb, logger.pauses, modes) == (expected[-1], 0, expected)
    assert (f"wandb log is {expected[-1]}" in capsys.readouterr().err) == (len(expected) > 1)
    assert fake.init is init and macros.WANDB_ENTITY is None


def test_a_resumed_run_has_its_wandb_run_and_the_plan(monkeypatch, tmp_path):
    macros = SimpleNamespace(WANDB_ENTITY="lab")
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=lambda **given: given))
    other = tmp_path / "other"
    other.mkdir()
    given = [
        wandb_logger(macros, lambda: {"robomimic_ddp": {"plan": 4}})(folder, log_wandb=True).wandb
        for folder in (tmp_path, tmp_path, other, tmp_path / "missing")
    ]
    assert given[0]["id"] == given[1]["id"] != given[2]["id"] and len(given[0]["id"]) == 8
    assert all(one["resume"] == "allow" for one in given[:3]) and "id" not in given[3]
    assert all(one["config"] == {"robomimic_ddp": {"plan": 4}} for one in given)
