"""`ckpt export`: a folder from which a policy acts without robomimic-ddp, and its model card."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from robomimic_ddp import files
from robomimic_ddp.checkpoint import torch_save
from robomimic_ddp.checkpoint.capture import STATEFUL
from robomimic_ddp.commands.ckpt import contents
from robomimic_ddp.commands.evaluate.record import cells
from robomimic_ddp.config import paths, tree
from robomimic_ddp.config.host import net_sizes
from robomimic_ddp.distributed import atomic_files
from robomimic_ddp.errors import CheckpointError
from robomimic_ddp.monitoring.records import evaluation, history, run_summary

WEIGHTS, CONFIG, CARD = "model.safetensors", "config.json", "README.md"
STATISTICS, METADATA = "normalization.json", "metadata.json"
LOADER = Path(__file__).with_name("load_policy.py")
_TRAINING = {"nets", "ema", *STATEFUL}
"""What a host's model consists of, if it acts with its nets or their average alone."""
_NEEDED = ("config", "algo_name", "shape_metadata")


def export(content: Mapping[str, Any], source: Path, folder: Path) -> tuple[str, str | None]:
    """Write the policy of the checkpoint `content`, read from `source`, as the new `folder`; return
    what weights they are, and what to know of the net's sizes. Raises CheckpointError: nothing is
    then written.
    """
    _require_policy(content, source)
    digest = contents.weights_digest(content, str(source))
    averaged = bool(content["model"].get("ema"))
    section = "ema" if averaged else "nets"
    tensors = content["model"][section]
    config = {"algo_name": content["algo_name"], **contents.config(content)}
    rest = {key: value for key, value in content.items() if key not in ("model", "config")}
    statistics = {key: rest.pop(key) for key in list(rest) if key.endswith("normalization_stats")}
    numbers = contents.count(tensors)
    kind = "averages of the nets (EMA)" if averaged else "those of the nets"
    weights = f"{kind}, {numbers:,} numbers"
    shapes = ((key, value.shape) for key, value in content["model"]["nets"].items())
    sizes = net_sizes.note(shapes, config)
    try:
        written = {
            WEIGHTS: _safetensors(tensors),
            CONFIG: _json(config),
            STATISTICS: _json(statistics),
            METADATA: _json({**rest, "weights": section}),
            LOADER.name: files.read_bytes(LOADER),
            CARD: _card(content, config, source, (weights, digest, sizes)).encode(),
        }
    except (KeyError, TypeError, ValueError) as error:  # a kind of number, an object, a text
        raise CheckpointError(
            f"{source} has a part that safetensors, JSON or UTF-8 cannot contain ({error!r}), so "
            "it was not exported."
        ) from error
    _write(written, folder)
    return weights, sizes


def _require_policy(content: Mapping[str, Any], source: Path) -> None:
    missing = [key for key in _NEEDED if key not in content]
    missing = missing or (["config that is JSON"] if not contents.config(content) else [])
    if missing:
        raise CheckpointError(
            f"{source} does not say how to build its nets: it has no {', '.join(missing)}. Export "
            "a host's checkpoint, such as last.pth or one of models/."
        )
    others = sorted(map(str, content["model"].keys() - _TRAINING))
    if others or not content["model"].get("nets"):
        raise CheckpointError(
            f"{source} has a model of {', '.join(others) or 'no nets'}; expected a policy of one "
            'part, with "nets". Hierarchical policies (HBC, IRIS) cannot be exported.'
        )


def _safetensors(tensors: Mapping[str, torch.Tensor]) -> bytes:
    try:
        from safetensors.torch import save
    except ImportError as error:
        raise CheckpointError(
            f"an export needs safetensors, which cannot be imported ({error}). Install it: "
            "pip install safetensors."
        ) from error
    separate = {key: value.contiguous().clone() for key, value in tensors.items()}
    return save(separate, {"format": "pt"})


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=1, default=_listed) + "\n").encode()


def _listed(value: Any) -> Any:
    """Return an array, tensor or number of a library as JSON has it."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"an object of the type {type(value).__name__}")


def _write(contents_of: Mapping[str, bytes], folder: Path) -> None:
    """Make `folder`, complete or not at all."""
    temporary = atomic_files.temporary_beside(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        atomic_files.remove_left_over(folder)
        temporary.mkdir()
        for name, data in contents_of.items():
            with open(temporary / name, "xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        os.rename(temporary, folder)
        atomic_files.flush_folder(folder.parent)
    except OSError as error:
        raise torch_save.save_error(folder, error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _card(
    content: Mapping[str, Any],
    config: Mapping[str, Any],
    source: Path,
    of: tuple[str, str, str | None],
) -> str:
    """Return the model card, with what the files of the checkpoint's run know. of: the weights in
    words, their digest, and the note on the net's sizes.
    """
    weights, digest, sizes = of
    rows = [
        ("algorithm", content["algo_name"]),
        ("weights", weights),
        ("net", sizes),
        *_shapes(content["shape_metadata"]),
        ("data", ", ".join(Path(path).name for path in paths.datasets(config.get("train")))),
    ]
    epoch = contents.saved_epoch(content, source.name)
    run = run_summary.directory_of(source)
    if run is not None:
        rows += _training(run, epoch)
        rows += _successes(run, digest)
    shown = [f"| {name} | {_cell(value)} |" for name, value in rows if value]
    title = _cell(tree.at(config, "experiment.name") or content["algo_name"])
    head = ["---", "library_name: robomimic", "pipeline_tag: robotics", "---", "", f"# {title}", ""]
    text = (
        f"A policy of robomimic, after epoch {epoch}, written by `robomimic-ddp ckpt export`. "
        f"`{LOADER.name}` loads it. "
        f"`{CONFIG}` is its configuration, `{METADATA}` has the shapes of its observations, and "
        f"`{STATISTICS}` what its inputs and actions are normalised with. The shapes of images are "
        "those that the nets get: the policy itself takes what an environment of its robomimic "
        "returns, since 0.5 frames of height x width x 3 in uint8, `frame_stack` of them at a time."
    )
    return "\n".join([*head, text, "", "| | |", "|---|---|", *shown]) + "\n"


def _cell(value: Any) -> str:
    return " ".join(str(value).split()).replace("|", "\\|")


def _shapes(metadata: Any) -> Iterator[tuple[str, str]]:
    shapes = tree.at(metadata, "all_shapes")
    named = shapes.items() if isinstance(shapes, Mapping) else ()
    yield "observations", ", ".join(f"{name} {list(shape)}" for name, shape in named)
    yield "actions", f"{tree.at(metadata, 'ac_dim')} numbers"


def _training(run: Path, epoch: int) -> Iterator[tuple[str, Any]]:
    record = run_summary.read(run)
    ranks, mode, backend = (
        tree.at(record, f"plan.{name}") for name in ("world_size", "mode", "backend")
    )
    yield "ranks", ranks and f"{ranks} ({mode}{f', {backend}' if backend else ''})"
    lines = history.read(run) if (run / history.FILE_NAME).is_file() else []
    samples = {
        line["epoch"]: line.get("samples", 0)
        for line in lines
        if line["phase"] == "train" and line["epoch"] is not None and line["epoch"] <= epoch
    }
    per_step = tree.at(record, "plan.samples_per_step")
    yield "samples", samples and f"{sum(samples.values()):,}, {per_step} in each step"
    versions = [record.get("host"), f"robomimic-ddp {record.get('version')}"]
    yield "trained with", ", ".join(str(version) for version in versions if version)


def _successes(run: Path, weights: str) -> Iterator[tuple[str, str]]:
    for result in evaluation.results(run):
        if result["weights"] == weights:
            _, env, episodes, rate, interval, *_ = cells(result)
            yield f"success in {env}", f"{rate} of {episodes} episodes (95 %: {interval})"
