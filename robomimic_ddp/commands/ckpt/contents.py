"""The contents of a checkpoint: described, and in another layout."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from numbers import Integral
from pathlib import Path
from typing import Any

import torch
from rich.filesize import decimal

from robomimic_ddp import files
from robomimic_ddp.checkpoint import require_complete, safe_load, torch_save
from robomimic_ddp.checkpoint.capture import STATEFUL
from robomimic_ddp.config import paths, tree
from robomimic_ddp.config.host import net_sizes
from robomimic_ddp.errors import CheckpointError
from robomimic_ddp.verify import digest

_EPOCH, _MOST_EPOCHS = re.compile(r"epoch_(\d+)"), 10**9
WRAPPED = "module"
"""The word that DataParallel adds to a net's keys, and DROID's hosts keep."""


def read(path: Any) -> dict[str, Any]:
    """Return a host's checkpoint, or the model of a `ddp_state.pth`, as {"model": {"nets", "ema",
    ...}}.

    Raises CheckpointError for other files. Runs no code of the file.
    """
    file = paths.checkpoint(path)
    content = safe_load.read_known(file, str(path))
    if isinstance(content, dict) and isinstance(content.get("state"), dict):
        require_complete(content["state"], file)
        content = _of_state(content["state"], path)
    if not isinstance(content, dict) or not isinstance(content.get("model"), dict):
        raise CheckpointError(
            f"{path} contains {safe_load.contents(content)}; expected a checkpoint of a host "
            '("model", "config", "algo_name") or a ddp_state.pth.'
        )
    for section in ("nets", "ema"):
        _require_tensors(content["model"].get(section), section, path)
    return content


def _require_tensors(tensors: Any, section: str, path: Any) -> None:
    items = tensors.items() if isinstance(tensors, dict) else [(type(tensors).__name__, None)]
    for key, value in items if tensors is not None else ():
        if not (isinstance(key, str) and isinstance(value, torch.Tensor)):
            raise CheckpointError(
                f'{path}: its model has {str(key)[:100]!r} in "{section}"; expected a tensor under '
                "each name."
            )


def _of_state(state: Mapping[str, Any], path: Any) -> dict[str, Any]:
    algorithms = state.get("model")
    algorithm = algorithms.get("") if isinstance(algorithms, dict) else None
    if not isinstance(algorithm, dict):
        raise CheckpointError(f"{path} contains no algorithm, or several; expected one.")
    ema = algorithm.get("ema_nets") or tree.at(algorithm, "ema.averaged_model")
    rest = {key: value for key, value in state.items() if key not in ("model", "ranks")}
    return {"model": {"nets": algorithm.get("nets"), "ema": ema}, "ddp_state": rest}


def described(content: Mapping[str, Any], path: Any, keys: bool = False) -> Iterator[str]:
    """Yield the lines for `show`."""
    state = content.get("ddp_state")
    kind = "a host's checkpoint" if state is None else "a state of robomimic-ddp"
    yield f"{path}: {kind}, {decimal(paths.expanded(path).stat().st_size)}"
    if state is not None:
        inside = tree.at(state, "inside.steps")
        part = f" and {inside} steps of the next" if inside else ""
        yield (
            f"after epoch {state['epoch']}{part}, step {state['steps']}; "
            f"{state['world_size']} rank(s), {state['samples_per_step']} samples per step; "
            f"save {state['save_id']}"
        )
        yield f"best so far: {state['best'] or 'nothing'}"
    else:
        name = tree.at(config(content), "experiment.name")
        yield f"algorithm {content.get('algo_name')}, experiment {name}"
        epoch = tree.at(content, "variable_state.epoch")
        if epoch is not None:
            yield f"after epoch {epoch}"
    for section, tensors in sections_of(content["model"]).items():
        layout = "with module." if _wrapped_nets(tensors) else "plain"
        yield f"{section}: {len(tensors)} tensors, {count(tensors):,} numbers, {layout}"
        for net, members in _by_net(tensors).items():
            yield f"  {net}: {count(members):,}"
        if keys:
            yield from (f"    {key} {list(value.shape)}" for key, value in tensors.items())
    nets = sections_of(content["model"]).get("nets", {}).items()
    if sizes := net_sizes.note(((key, value.shape) for key, value in nets), config(content)):
        yield f"net: {sizes}"
    if others := [key for key in content["model"] if key not in ("nets", "ema")]:
        yield f"also: {', '.join(map(str, others))}"


def converted(content: dict[str, Any], layout: str, ema: bool, name: Any) -> dict[str, Any]:
    """Return `content` in another layout; `ema`: with the averaged weights as its nets, too, and
    nothing of the training. They stay its averages: a host acts with those.

    Raises CheckpointError if it has no averaged weights, or no nets under that name.
    """
    sections = sections_of(content["model"])
    if not sections:
        raise CheckpointError(
            f'{name} has a model without "nets". Checkpoints of hierarchical policies (HBC, IRIS), '
            "and of hosts that save the keys of their nets without that name, can be shown, but "
            "not converted."
        )
    if ema:
        if "ema" not in sections:
            raise CheckpointError(f"{name} has no averaged weights: it was trained without EMA.")
        sections = dict.fromkeys(("nets", "ema"), sections["ema"])
    model = {
        key: value for key, value in content["model"].items() if not ema and key not in sections
    }
    for section, tensors in sections.items():
        model[section] = tensors if layout == "keep" else _rename_keys(tensors, layout)
    return {**content, "model": model}


def _rename_keys(tensors: Mapping[str, torch.Tensor], layout: str) -> dict[str, torch.Tensor]:
    wrapped = _wrapped_nets(tensors)
    renamed = {}
    for key, value in tensors.items():
        net, rest = _split(key)
        if net in wrapped:
            rest = rest[len(WRAPPED) + 1 :]
        renamed[f"{net}.{WRAPPED}.{rest}" if layout == "host" else f"{net}.{rest}"] = value
    return renamed


def _split(key: str) -> tuple[str, str]:
    """Return net and name, as ("policy.obs_encoder", "nets.0.weight"): nets are two levels deep."""
    words = key.split(".")
    return ".".join(words[:2]), ".".join(words[2:])


def _by_net(tensors: Mapping[str, torch.Tensor]) -> dict[str, dict[str, torch.Tensor]]:
    nets: dict[str, dict[str, torch.Tensor]] = {}
    for key, value in tensors.items():
        net, rest = _split(key)
        nets.setdefault(net, {})[rest] = value
    return nets


def _wrapped_nets(tensors: Mapping[str, torch.Tensor]) -> set[str]:
    """Return the nets whose keys all begin with `module.`."""
    return {
        net
        for net, members in _by_net(tensors).items()
        if all(rest.startswith(f"{WRAPPED}.") for rest in members)
    }


def sections_of(model: Mapping[str, Any]) -> dict[str, dict[str, torch.Tensor]]:
    """Return the tensors of "nets" and "ema", as far as present."""
    return {section: dict(model[section]) for section in ("nets", "ema") if model.get(section)}


def count(tensors: Mapping[str, torch.Tensor]) -> int:
    """Return how many numbers the tensors have; robomimic names those of image encoders twice."""
    return sum({(t.data_ptr(), t.shape): t.numel() for t in tensors.values()}.values())


def section_sizes(content: Mapping[str, Any]) -> Iterator[str]:
    """Yield the sections of a checkpoint with their sizes."""
    for section, members in sections_of(content["model"]).items():
        yield f"{section} ({count(members):,} numbers)"


def config(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the host's config of a checkpoint; an empty one where it cannot be read."""
    try:
        settings = files.parse_json(content.get("config") or "{}")
    except (TypeError, ValueError):
        return {}
    return settings if isinstance(settings, dict) else {}


def saved_epoch(content: Mapping[str, Any], file_name: str) -> int:
    """Return the epoch in a checkpoint, or else in its name, or 0. Raises ValueError."""
    epochs = (tree.at(content, f"{part}.epoch") for part in ("variable_state", "ddp_state"))
    epoch = next((epoch for epoch in epochs if epoch is not None), None)
    if epoch is None:
        match = _EPOCH.search(file_name)
        return int(match[1]) if match else 0
    if not isinstance(epoch, Integral) or not 0 <= epoch <= _MOST_EPOCHS:
        raise ValueError(f"its epoch is {str(epoch)[:20]}")
    return int(epoch)


def weights_digest(content: Mapping[str, Any], shown: str) -> str:
    """Return the digest of the weights. Raises CheckpointError where they are not numbers."""
    weights = _without_optimizers(content["model"])
    safe_load.require_numbers(weights, shown, "its policy cannot act")
    return digest(weights)[:16]


def _without_optimizers(nest: Any) -> Any:
    if not isinstance(nest, Mapping):
        return nest
    return {key: _without_optimizers(part) for key, part in nest.items() if key not in STATEFUL}


def write(content: Mapping[str, Any], output: Path) -> None:
    """Write a checkpoint. Raises CheckpointError, or OSError where its folder cannot be made."""
    output.parent.mkdir(parents=True, exist_ok=True)
    torch_save.save(dict(content), output, follow=False)
