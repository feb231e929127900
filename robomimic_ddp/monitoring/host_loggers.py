"""The host's PrintLogger and DataLogger: complete on the main rank, warnings and errors elsewhere.

The classes are changed in place, not subclassed: a host's `super(PrintLogger, self)` refers to the
decorated class, which would be its own parent.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import sys
import threading
import uuid
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from robomimic_ddp import files
from robomimic_ddp.config import env
from robomimic_ddp.config.monkeypatch import swapped
from robomimic_ddp.distributed import end_process, group
from robomimic_ddp.distributed.quiet_streams import KeepWarnings, LogFile, Tee
from robomimic_ddp.errors import RobomimicDDPError
from robomimic_ddp.terminal import warn

TENSORBOARD_SETTINGS = {"flush_secs": 1, "max_queue": 1000}
"""tensorboardX keeps scalars for two minutes, and a process that is killed loses them. Its queue
has room for ten: if its thread ends (a full disk) while more are added, it waits without end.
"""
DATA_LOGGER_SWITCHES = ("log_tb", "log_wandb")
WANDB_ID = "wandb_run_id"
"""File in the folder of logs: a resumed run continues its wandb run."""


class QuietLog:
    """A PrintLogger on other ranks: writes `log_rank<k>.txt`, in the folder of the host's log file.

    The host replaces both standard streams by one PrintLogger. At its first write sys.stderr
    becomes `errors`, which writes all text to the file and to the real stderr; prints are kept only
    if they contain a warning or an error.
    """

    def __init__(self, log_path: str) -> None:
        folder, name = os.path.split(log_path)
        stem, extension = os.path.splitext(name)
        self.path = os.path.join(folder, f"{stem}_rank{group.rank()}{extension}")
        with suppress(OSError):  # LogFile warns
            os.makedirs(folder, exist_ok=True)  # the disk of another node than the main rank's
        self.file = LogFile(self.path, is_ours=True)
        self.prints = KeepWarnings(self.file)
        self.errors = Tee(self.file, sys.stderr)

    def write(self, logger: Any, message: str) -> int:
        if sys.stderr is logger:
            sys.stderr = self.errors
        return self.prints.write(message)


def print_logger(cls: type) -> type:
    """Decorates the host's PrintLogger(log_file): other ranks keep warnings and errors only.

    On the main rank it is unchanged. On others nothing is printed: messages with warnings or
    errors, and all of stderr, go to log_rank<k>.txt in the folder of the log file; stderr is shown
    too. Warns once if the log cannot be written.
    """
    host_init, host_write, host_flush = cls.__init__, cls.write, cls.flush  # type: ignore[misc]

    @functools.wraps(host_init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        self._quiet_log = None
        call = inspect.signature(host_init).bind(self, *args, **kwargs)
        path = os.fspath(list(call.arguments.values())[1])
        if group.is_main():
            try:
                host_init(self, *args, **kwargs)
                if hasattr(self, "log_file"):
                    self.log_file = LogFile(path, self.log_file)
            except OSError:  # from opening the log: LogFile warns, and tries again
                self.terminal, self.log_file = sys.stdout, LogFile(path)
            return
        self._quiet_log = QuietLog(path)
        self.terminal, self.log_file = sys.stdout, self._quiet_log.file

    @functools.wraps(host_write)
    def write(self: Any, message: str) -> Any:
        if self._quiet_log is None:
            return host_write(self, message)
        return self._quiet_log.write(self, message)

    @functools.wraps(host_flush)
    def flush(self: Any) -> Any:
        return host_flush(self) if self._quiet_log is None else self._quiet_log.file.flush()

    cls.__init__, cls.write, cls.flush = __init__, write, flush  # type: ignore[misc]
    return cls


def data_logger(
    cls: type,
    facts: Callable[[], dict[str, Any]] = dict,
    on_created: Callable[[Any], None] = lambda logger: None,
) -> type:
    """Decorates the host's DataLogger(log_dir, config, log_tb, log_wandb), changed in place.
    on_created: called with each one that writes TensorBoard or wandb.

    On the main rank TensorBoard's file has every value within a second, and all of them at the end
    of the process; wandb follows WANDB_MODE, needs no entity, and switches to offline at the first
    failure; a resumed run continues its wandb run, whose config has `facts()`. On others
    TensorBoard and wandb are off; `record`, `get_stats` and `close` work on this rank's values.
    """
    host_init = cls.__init__  # type: ignore[misc]
    signature = inspect.signature(host_init)

    @functools.wraps(host_init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        call = signature.bind(self, *args, **kwargs)
        call.apply_defaults()
        if not group.is_main():
            switches = [name for name in DATA_LOGGER_SWITCHES if name in signature.parameters]
            if not switches:
                raise RobomimicDDPError(
                    f"{cls.__name__}{signature} has none of the parameters {DATA_LOGGER_SWITCHES}, "
                    "so all ranks would write the same log files. Give it such a switch, or use "
                    "one rank."
                )
            call.arguments.update(dict.fromkeys(switches, False))
        package = cls.__module__.partition(".")[0]
        with ExitStack() as stack:
            if call.arguments.get("log_tb"):
                stack.enter_context(_tensorboard_at_once())
            if call.arguments.get("log_wandb"):
                added = {**_wandb_id(call.arguments.get("log_dir")), "config": facts()}
                stack.enter_context(_wandb_as_asked(package, added))
            host_init(*call.args, **call.kwargs)
        if getattr(self, "_tb_logger", None) is not None:
            end_process.write_before_end(functools.partial(_close_tensorboard, weakref.ref(self)))
        if any(getattr(self, name, None) is not None for name in ("_tb_logger", "_wandb_logger")):
            on_created(self)

    cls.__init__ = __init__  # type: ignore[misc]
    for name in ("record", "close"):
        if hasattr(cls, name):
            setattr(cls, name, _without_dead_writer(getattr(cls, name)))
    return cls


@contextmanager
def _tensorboard_at_once() -> Iterator[None]:
    """For the block: a SummaryWriter of tensorboardX writes its file within a second."""
    try:
        import tensorboardX
    except ImportError:  # the host reports it
        yield
        return
    at_once = functools.partial(tensorboardX.SummaryWriter, **TENSORBOARD_SETTINGS)
    with swapped(tensorboardX, "SummaryWriter", at_once):
        yield


def _close_tensorboard(logger: weakref.ref[Any]) -> None:
    """Writes what the DataLogger has given to TensorBoard, whose thread writes a moment later."""
    alive = logger()
    if alive is not None:
        _drop_dead_writer(alive)
        writer, alive._tb_logger = alive._tb_logger, None
        if writer is not None:
            writer.close()


def _drop_dead_writer(logger: Any) -> None:
    """Warns and switches TensorBoard off if tensorboardX's thread has ended (a full disk)."""
    if close_if_dead(getattr(logger, "_tb_logger", None)):
        logger._tb_logger = None
        warn(
            "TensorBoard's log could not be written (its error is above). "
            "Training continues without it."
        )


def close_if_dead(tensorboard: Any) -> bool:
    """Return whether the thread of a SummaryWriter has ended. It is then closed: adding a value,
    closing it and the end of the process would wait for that thread without end.
    """
    writer = getattr(getattr(tensorboard, "file_writer", None), "event_writer", None)
    thread = getattr(writer, "_worker", None)
    if not isinstance(thread, threading.Thread) or thread.is_alive():
        return False
    writer._closed = True
    writer._event_queue.cancel_join_thread()
    return True


def _without_dead_writer(method: Callable) -> Callable:
    """Decorates a method of the DataLogger, which would wait for a dead thread without end."""

    @functools.wraps(method)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        _drop_dead_writer(self)
        return method(self, *args, **kwargs)

    return wrapped


def _wandb_id(log_dir: Any) -> dict[str, Any]:
    """Arguments of `wandb.init`: the run of `log_dir`, {} where its id cannot be kept."""
    try:
        file = Path(log_dir) / WANDB_ID
        if not file.exists():
            with open(file, "x", encoding="utf-8") as new:
                new.write(uuid.uuid4().hex[:8])
        return {"id": files.read_text(file, 100).strip(), "resume": "allow"}
    except (OSError, TypeError, UnicodeDecodeError):
        return {}


@contextmanager
def _wandb_as_asked(package: str, added: Mapping[str, Any]) -> Iterator[None]:
    """For the block: `wandb.init` uses WANDB_MODE if it is set, the account's default entity, and
    mode offline if it fails (no network, no login). Hosts require an entity, and try nine times, 30
    s apart. `added`: arguments that the host leaves out.
    """
    try:
        import wandb
    except ImportError:  # the host reports it
        yield
        return
    plain_init = wandb.init

    def init(*args: Any, **kwargs: Any) -> Any:
        kwargs["entity"] = kwargs.get("entity") or None
        kwargs["mode"] = env.wandb_mode() or kwargs.get("mode")
        kwargs["config"] = {**added["config"], **(kwargs.get("config") or {})}
        kwargs = {**added, **kwargs}
        try:
            return plain_init(*args, **kwargs)
        except Exception as error:
            other = "disabled" if kwargs["mode"] == "offline" else "offline"
            warn(
                f"wandb could not start ({str(error).strip() or type(error).__name__}): "
                f"this run's wandb log is {other}. To choose that yourself, set WANDB_MODE=offline "
                "or disabled; `wandb sync` uploads an offline log."
            )
            return plain_init(*args, **{**kwargs, "mode": other})

    with ExitStack() as stack:
        stack.enter_context(swapped(wandb, "init", init))
        with suppress(ImportError):  # a host without macros requires no entity
            macros = importlib.import_module(f"{package}.macros")
            if getattr(macros, "WANDB_ENTITY", "") is None:
                stack.enter_context(swapped(macros, "WANDB_ENTITY", ""))
        yield
