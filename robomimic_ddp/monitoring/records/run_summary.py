"""A run in a few lines, from the files of its folder: how far and how fast it is, its last save,
and the command that resumes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from robomimic_ddp import files
from robomimic_ddp.config import tree
from robomimic_ddp.monitoring.records.run_files import RECORD, REQUEUE, STATE

_MOST_SAMPLES = 10**12
SILENT_SECONDS = 15.0
"""A rank is silent after this time without a heartbeat."""


def lines(directory: Path, beats: Sequence[Mapping[str, Any]], now: float) -> Iterator[str]:
    """Yield what is known of the run in `directory` at the time `now`. beats: of its ranks."""
    record = read(directory)
    last = min(beats, key=lambda beat: (beat["epoch"] or 0, beat["step"]))
    name = "/".join(directory.absolute().parts[-2:])
    yield f"run {name}: epoch {_of(last['epoch'], last.get('epochs'))}, step {_steps(last)}"
    is_training = not any(beat.get("ended") or beat["finished"] for beat in beats)
    if is_training and not any(is_silent(beat, now) for beat in beats):
        yield from _speed(record, beats, last)
    stopped = _json(directory / REQUEUE).get("stopped")
    yield f"last save: {_last_save(directory, {} if stopped else record, now)}"
    if stopped:
        yield f"stopped {stopped}"


def is_silent(beat: Mapping[str, Any], now: float) -> bool:
    """Return whether a rank has given no heartbeat for SILENT_SECONDS."""
    return now - beat["time"] > SILENT_SECONDS


def read(directory: Path) -> Mapping[str, Any]:
    """Return the `ddp.json` of a run; an empty one where there is none, or it is damaged."""
    return _json(directory / RECORD)


def resume_command(directory: Path) -> str | None:
    """Return the command that resumes the run in `directory`; None for one that has finished, has
    saved nothing, or was not trained by us.
    """
    record = read(directory)
    command = _json(directory / REQUEUE).get("resume") or record.get("resume")
    can_resume = is_incomplete(directory) and (directory / STATE).is_file()
    return command if can_resume and isinstance(command, str) else None


def is_incomplete(directory: Path) -> bool:
    """Return whether the run in `directory` has been trained by us, and not to its end."""
    record = read(directory)
    return bool(record) and "outcome" not in record


def directory_of(file: Path) -> Path | None:
    """Return the folder of a checkpoint's run: its own, or the one above it; else None."""
    folders = file.absolute().parents
    return next((folder for folder in folders[:2] if (folder / RECORD).is_file()), None)


def _speed(
    record: Mapping[str, Any], beats: Sequence[Mapping[str, Any]], last: Mapping[str, Any]
) -> Iterator[str]:
    """Yield the line of speed, once each rank has timed a step."""
    seconds = [beat["step_seconds"] for beat in beats]
    samples = tree.at(record, "plan.samples_per_step")
    if not all(seconds):
        return
    slowest = max(seconds)
    is_known = tree.is_whole(samples, 1, _MOST_SAMPLES)
    parts = [f"{samples / slowest:.3g} samples/s"] if is_known else []
    waits = [beat["data_share"] for beat in beats if beat.get("data_share") is not None]
    parts += [f"data wait {max(waits):.0%}"] if waits else []
    steps, epochs, epoch = last.get("steps"), last.get("epochs"), last["epoch"]
    if all(isinstance(number, int) for number in (steps, epochs, epoch)):
        left = max(0, steps - last["step"]) + max(0, epochs - epoch) * steps
        with suppress(OverflowError):  # of a damaged file
            parts.append(f"training ends in {timedelta(seconds=round(left * slowest))}")
    yield f"speed: {', '.join(parts)}"


def _last_save(directory: Path, record: Mapping[str, Any], now: float) -> str:
    try:
        ago = timedelta(seconds=round(max(0.0, now - (directory / STATE).stat().st_mtime)))
    except OSError:
        return "none yet"
    epoch = tree.at(record, "saved.epoch")
    return f"{f'after epoch {epoch}, ' if epoch is not None else ''}{ago} ago"


def _steps(beat: Mapping[str, Any]) -> str:
    return _of(beat["step"], beat.get("steps"))


def _of(number: Any, total: Any) -> str:
    shown = "-" if number is None else f"{number}"
    return f"{shown} of {total}" if isinstance(total, int) else shown


def _json(path: Path) -> Mapping[str, Any]:
    """Return the object in a file; an empty one where there is none, or it is damaged."""
    try:
        content = files.read_json(path)
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
