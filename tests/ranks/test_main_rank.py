"""Two ranks: one value, one error, one set of files; the other rank's warnings are kept."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from pathlib import Path

import pytest

from robomimic_ddp.distributed import atomic_files, group, main_rank, quiet_streams
from robomimic_ddp.monitoring import host_loggers
from tests.ranks.pool import RankError


class Unpicklable(Exception):
    def __init__(self, first, second):
        super().__init__(f"{first} and {second}")


def value_and_calls(folder):
    calls = []

    def make(name, suffix):
        calls.append(name)
        (Path(folder) / name).mkdir()
        return f"{name}{suffix}", os.getpid()

    return main_rank.on_main(make, "run", suffix="1"), calls


def one_within_another():
    inner = main_rank.once(lambda: "written")
    outer = main_rank.once(lambda: inner() + " once")
    return outer(), main_rank.agree(group.rank())  # no telegram is left over


def fail_on_main(kind):
    def make():
        if kind == "odd":
            raise Unpicklable("this", "that")
        if kind == "value":
            return lambda: None  # cannot be sent to other ranks
        if kind == "exit":
            sys.exit(3)
        raise FileExistsError(17, "File exists", "/runs/a")

    try:
        main_rank.on_main(make)
    except BaseException as error:
        group.barrier()  # nobody was left behind in a collective
        return type(error).__name__, str(error), str(error.__cause__)


def files(folder):
    path = Path(folder) / "config.json"
    for round_number in range(2):
        with atomic_files.open_on_main(path, "w") as file:
            file.write(f"rank {group.rank()} round {round_number}")
        with atomic_files.open_on_main(path.with_suffix(".csv"), "a", newline="") as file:
            file.write(f"rank {group.rank()} round {round_number}\n")
        atomic_files.copyfile(path, path.with_suffix(".bak"))
    with atomic_files.open_on_main(path.with_suffix(".bin"), "wb") as file:
        file.write(b"bytes")
    saved = main_rank.main_rank_only(lambda: f"saved by {group.rank()}")()
    return saved, main_rank.agree(group.rank() + 5)


@host_loggers.print_logger
class PrintLogger:
    """As the host's."""

    def __init__(self, log_file):
        self.terminal = sys.stdout
        print(f"STDOUT will be forked to {log_file}")
        self.log_file = open(log_file, "a")

    def write(self, message):
        self.terminal.write(message)
        self.log_file.write(message)
        self.log_file.flush()

    def flush(self):
        self.terminal.flush()


@host_loggers.data_logger
class DataLogger:
    """As the host's, with files for TensorBoard and wandb."""

    def __init__(self, log_dir, config, log_tb=True, log_wandb=False):
        self.data = {}
        self.files = [name for name, on in (("tb", log_tb), ("wandb", log_wandb)) if on]
        for name in self.files:
            (Path(log_dir) / name).mkdir()

    def record(self, key, value, epoch):
        self.data.setdefault(key, []).append(value)

    def get_stats(self, key):
        return sum(self.data[key]) / len(self.data[key])

    def close(self):
        self.files = None


@host_loggers.data_logger
class NoSwitch:
    def __init__(self, log_dir):
        pass


def train_with_logs(folder):
    """What the host's `train` does with its streams."""
    real = sys.stdout, sys.stderr
    with warnings.catch_warnings(), quiet_streams.quiet_stdout(not group.is_main()):
        print("before the log")
        print("a WARNING before the log")
        logger = PrintLogger(os.path.join(folder, "log.txt"))
        sys.stdout = logger
        sys.stderr = logger
        print("Train Epoch 1")
        print("\x1b[33mROBOMIMIC WARNING(\n    no such key\n)\x1b[0m")
        warnings.simplefilter("always")
        warnings.warn("odd value", stacklevel=1)
        logging.getLogger("lib").warning("said by a library")
        sys.stderr.write("plain text on stderr\n")
        sys.stdout.write("\r 50% of errors")
        sys.stdout.flush()
        print("run failed with error:\nno data\n\nTraceback (most recent call last):\n  File")
    return (sys.stdout, sys.stderr) == real


def record_data(folder):
    logger = DataLogger(folder, None, log_tb=True, log_wandb=True)
    logger.record("Loss", 2.0 + group.rank(), 1)
    logger.record("Loss", 4.0 + group.rank(), 2)
    stats, files_made = logger.get_stats("Loss"), logger.files
    logger.close()
    return stats, files_made


def make_no_switch():
    NoSwitch("somewhere")


def test_what_runs_on_the_main_rank_calls_another_such_function_alone(ranks):
    assert ranks.run(one_within_another) == [("written once", 0)] * 2


def test_one_call_one_value(ranks, tmp_path):
    (first, calls), (second, none) = ranks.run(value_and_calls, str(tmp_path))
    assert first == second and first[0] == "run1"
    assert (calls, none) == (["run"], [])


@pytest.mark.parametrize(
    ("kind", "name", "text"),
    [
        ("os", "FileExistsError", "/runs/a"),
        ("exit", "SystemExit", "3"),
        ("odd", "RobomimicDDPError", "Unpicklable: this and that"),
        ("value", "AttributeError", "local object"),
    ],
)
def test_the_same_error_with_the_main_ranks_traceback(ranks, kind, name, text):
    main, other = ranks.run(fail_on_main, kind)
    assert other[0] == name and text in other[1]
    if name != "RobomimicDDPError":
        assert main[:2] == other[:2]
    assert other[2].startswith("on the main rank:\nTraceback")


def test_files_are_written_once(ranks, tmp_path):
    assert ranks.run(files, str(tmp_path)) == [("saved by 0", 5), (None, 5)]
    assert sorted(os.listdir(tmp_path)) == ["config.bak", "config.bin", "config.csv", "config.json"]
    assert (tmp_path / "config.csv").read_text() == "rank 0 round 0\nrank 0 round 1\n"
    assert (tmp_path / "config.json").read_text() == "rank 0 round 1"
    assert (tmp_path / "config.bak").read_text() == "rank 0 round 1"


def test_other_ranks_keep_warnings_and_errors_only(ranks, tmp_path, monkeypatch):
    restored = ranks.run(train_with_logs, str(tmp_path))
    # The host never puts the streams back; on other ranks the end of the block does.
    assert restored == [False, True]
    assert sorted(os.listdir(tmp_path)) == ["log.txt", "log_rank1.txt"]
    main, other = ((tmp_path / name).read_text() for name in ("log.txt", "log_rank1.txt"))
    kept = [
        "ROBOMIMIC WARNING(\n    no such key\n)",
        "odd value",
        "said by a library",
        "plain text on stderr",
        "no data\n\nTraceback",
    ]
    for text in kept:
        assert text in main and text in other
    for text in ("Train Epoch 1", "50%"):
        assert text in main and text not in other
    assert "before the log" not in other
    assert "\n\n\n" not in other


def show_streams(folder):
    train_with_logs(folder)
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
    raise RuntimeError("show the output")


def test_other_ranks_show_stderr_and_nothing_else(ranks, tmp_path):
    with pytest.raises(RankError) as caught:
        ranks.run(show_streams, str(tmp_path))
    output = caught.value.by_rank[1].split("output:")[1]
    for text in ("a WARNING before the log", "odd value", "plain text on stderr"):
        assert text in output
    for text in ("Train Epoch", "forked to", "50%", "ROBOMIMIC WARNING"):
        assert text not in output and text in caught.value.by_rank[0]


def test_one_set_of_data_logs(ranks, tmp_path):
    assert ranks.run(record_data, str(tmp_path)) == [(3.0, ["tb", "wandb"]), (4.0, [])]
    assert sorted(os.listdir(tmp_path)) == ["tb", "wandb", "wandb_run_id"]


def test_a_data_logger_that_cannot_be_switched_off_is_a_clear_error(ranks):
    with pytest.raises(RankError) as caught:
        ranks.run(make_no_switch)
    assert "none of the parameters ('log_tb', 'log_wandb')" in caught.value.by_rank[1]
