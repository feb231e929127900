"""Reads what a training run left in its directory, and compares two runs to the bit."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from robomimic_ddp.checkpoint import STATE, capture_model, plain
from robomimic_ddp.checkpoint.state_file import read_file
from tests.configs import NAME

_EPOCH = re.compile(r"^(Train|Validation) Epoch (\d+)$", re.MULTILINE)


def run_directory(output: Path) -> Path:
    """The directory of the only run below a config's `train.output_dir`."""
    found = sorted((output / NAME).iterdir())
    assert len(found) == 1, f"one run directory was expected, found {found}"
    return found[0]


def newest(folder: Path) -> dict[str, Any]:
    """Our newest state of the only run below `folder`/runs."""
    return read_file(run_directory(folder / "runs") / STATE)


def require_equal_weights(one: Path, two: Path) -> None:
    """Fail unless the nets of two checkpoints have the same keys, in order, and the same bits."""
    before, after = (load(path)["model"]["nets"] for path in (one, two))
    assert list(before) == list(after)
    assert [name for name in before if not torch.equal(before[name], after[name])] == []


def captured(algo: Any) -> dict[str, Any]:
    """What a state file has of the model."""
    return plain(capture_model(algo))


def epoch_logs(directory: Path) -> dict[tuple[str, int], dict[str, float]]:
    """("Train" | "Validation", epoch) -> the log that the host printed, without its timings."""
    text = (directory / "logs" / "log.txt").read_text()
    logs = {}
    for match in _EPOCH.finditer(text):
        start = text.index("{", match.end())
        log, _ = json.JSONDecoder().raw_decode(text[start:])
        log = {name: value for name, value in log.items() if not name.startswith("Time_")}
        key = (match[1], int(match[2]))
        assert key not in logs, f"{key} was logged twice"
        logs[key] = log
    return logs


def scalars(run: Path, suffix: str = "") -> dict[tuple[str, int], float]:
    """(tag, epoch) -> value in a run's TensorBoard files with that suffix, the last one written."""
    from tensorboardX.proto.event_pb2 import Event

    values = {}
    for file in sorted((run / "logs" / "tb").glob(f"events.*{suffix}")):
        data = file.read_bytes()
        while len(data) > 8:
            size = int.from_bytes(data[:8], "little")
            if len(data) < size + 16:  # its writer was killed
                break
            event = Event.FromString(data[12 : 12 + size])
            data = data[16 + size :]
            values |= {(value.tag, event.step): value.simple_value for value in event.summary.value}
    return values


def checkpoints(directory: Path) -> dict[str, Path]:
    """Every checkpoint of the host's in a run, by file name (which has the best loss)."""
    found = sorted(directory.rglob("*.pth"))
    return {path.name: path for path in found if not path.name.startswith("ddp_state")}


def load(path: Path) -> dict[str, Any]:
    """A checkpoint's dictionary, on the CPU."""
    return torch.load(path, map_location="cpu", weights_only=False)


def flat(tree: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every leaf of nested dicts, lists and tuples, with its path."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from flat(value, f"{prefix}/{key}")
    elif isinstance(tree, (list, tuple)):
        for number, value in enumerate(tree):
            yield from flat(value, f"{prefix}/{number}")
    else:
        yield prefix, tree


def checkpoint_differences(one: Path, two: Path) -> list[str]:
    """Where two checkpoints differ in any bit or key. The configs' `output_dir` may differ."""
    first, second = (dict(flat(_comparable(load(path)))) for path in (one, two))
    faults = [f"only in one: {path}" for path in sorted(set(first) ^ set(second))]
    for path in sorted(set(first) & set(second)):
        if not same_bits(first[path], second[path]):
            faults.append(f"{path}: {_short(first[path])} != {_short(second[path])}")
    return faults


def _comparable(checkpoint: dict[str, Any]) -> dict[str, Any]:
    config = json.loads(checkpoint["config"])
    config["train"].pop("output_dir")
    return {**checkpoint, "config": config}


def same_bits(one: Any, two: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(two, torch.Tensor):
        if one.dtype != two.dtype or one.shape != two.shape:
            return False
        return one.contiguous().numpy().tobytes() == two.contiguous().numpy().tobytes()
    return type(one) is type(two) and bool(one == two)


def _short(value: Any) -> str:
    return str(value).replace("\n", " ")[:80]


def digests(state: dict[str, torch.Tensor]) -> dict[str, str]:
    """Name -> digest of a tensor's bytes."""
    return {
        name: hashlib.sha256(tensor.detach().contiguous().cpu().numpy().tobytes()).hexdigest()
        for name, tensor in state.items()
    }


STATE_VARIES = ("/save_id", "/job", "/export", "/options/resume", "/random/python/")
"""Not of the training: names of saves, jobs and files, whether the run was resumed, and Python's
stream, which the host never seeds.
"""


TELLING = ("/ema_nets/", "/exp_avg", "/random/torch")
"""Parts of a diffusion policy's state."""


def state_differences(
    one: dict[str, Any], two: dict[str, Any], telling: tuple[str, ...] = TELLING
) -> list[str]:
    """Where two of our states differ in any bit of the training. Both must have paths with each of
    `telling`.
    """
    first, second = dict(flat(one)), dict(flat(two))
    names = [name for name in {**first, **second} if not any(part in name for part in STATE_VARIES)]
    for part in telling:
        assert any(part in name for name in names), f"the states have no {part}"
    return [
        name
        for name in names
        if name not in first or name not in second or not same_bits(first[name], second[name])
    ]
