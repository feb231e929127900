"""What is inside a checkpoint, in words, in another layout, and the mean of several."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from robomimic_ddp import files
from robomimic_ddp.checkpoint import require_complete, safe_load, torch_save
from robomimic_ddp.config import net_sizes, paths, tree
from robomimic_ddp.distributed import atomic_files
from robomimic_ddp.errors import CheckpointError

WRAPPED = "module"
"""The component that DataParallel adds to a net's keys, and DROID's hosts keep."""
_DECIDES = re.compile(
    r"algo_name$|(algo|observation)\.|train\.(?!(output_dir|data_cache_dir|num_epochs|"
    r"num_data_workers|cuda)$)"
)
"""Settings that checkpoints of one run have in common, also after it was resumed."""


def read(path: Any) -> dict[str, Any]:
    """Return a host's checkpoint, or the model of a `ddp_state.pth`, as {"model": {"nets", "ema",
    ...}}.

    Raises CheckpointError for other files. Runs no code of the file.
    """
    file = paths.expanded(path)
    if file.is_dir():
        raise CheckpointError(
            f"{path}: this is a folder; expected a file, such as models/*.pth or last.pth in it."
        )
    if not file.exists():
        raise CheckpointError(f"{path}: there is no such file (looked for {file.absolute()}).")
    content = safe_load.read_known(file, str(path))
    if isinstance(content, dict) and isinstance(content.get("state"), dict):
        require_complete(content["state"], file)
        content = _of_state(content["state"], path)
    if not isinstance(content, dict) or not isinstance(content.get("model"), dict):
        raise CheckpointError(
            f"{path} contains {safe_load.contents(content)}; expected a checkpoint of a host "
            '("model", "config", "algo_name") or a ddp_state.pth.'
        )
    for part in ("nets", "ema"):
        _require_tensors(content["model"].get(part), part, path)
    return content


def _require_tensors(tensors: Any, part: str, path: Any) -> None:
    members = tensors.items() if isinstance(tensors, dict) else [(type(tensors).__name__, None)]
    for key, value in members if tensors is not None else ():
        if not (isinstance(key, str) and isinstance(value, torch.Tensor)):
            raise CheckpointError(
                f'{path}: its model has {str(key)[:100]!r} in "{part}"; expected names with a '
                "tensor each."
            )


def _of_state(state: Mapping[str, Any], path: Any) -> dict[str, Any]:
    algorithms = state.get("model")
    algorithm = algorithms.get("") if isinstance(algorithms, dict) else None
    if not isinstance(algorithm, dict):
        raise CheckpointError(f"{path}: found no single algorithm in this state.")
    ema = algorithm.get("ema_nets") or tree.at(algorithm, "ema.averaged_model")
    rest = {key: value for key, value in state.items() if key not in ("model", "ranks")}
    return {"model": {"nets": algorithm.get("nets"), "ema": ema}, "ddp_state": rest}


def described(content: Mapping[str, Any], path: Any, keys: bool = False) -> Iterator[str]:
    """Yield the lines for `show`."""
    state = content.get("ddp_state")
    kind = "a host's checkpoint" if state is None else "a state of robomimic-ddp"
    yield f"{path}: {kind}, {Path(path).stat().st_size / 1e6:.1f} MB"
    if state is not None:
        inside = state.get("inside")
        yield (
            f"after epoch {state['epoch']}{f' and {inside} of the next' if inside else ''}, step "
            f"{state['steps']}; {state['world_size']} rank(s), {state['samples_per_step']} samples "
            f"per step; save {state['save_id']}"
        )
        yield f"best so far: {state['best'] or 'nothing'}"
    else:
        name = tree.at(_config(content), "experiment.name")
        yield f"algorithm {content.get('algo_name')}, experiment {name}"
        epoch = tree.at(content, "variable_state.epoch")
        if epoch is not None:
            yield f"after epoch {epoch}"
    for part, tensors in _tensors(content["model"]).items():
        layout = "with module." if _wrapped_nets(tensors) else "plain"
        yield f"{part}: {len(tensors)} tensors, {_count(tensors):,} numbers, {layout}"
        for net, members in _by_net(tensors).items():
            yield f"  {net}: {_count(members):,}"
        if keys:
            yield from (f"    {key} {list(value.shape)}" for key, value in tensors.items())
    nets = _tensors(content["model"]).get("nets", {}).items()
    yield from filter(None, [net_sizes.note(((k, v.shape) for k, v in nets), _config(content))])
    others = [key for key in content["model"] if key not in ("nets", "ema")]
    if others:
        yield f"also: {', '.join(map(str, others))}"


def averaged(contents: list[dict[str, Any]], names: list[str]) -> dict[str, Any]:
    """Return the first checkpoint with the mean of all checkpoints' nets and averages (in float64).

    Raises CheckpointError, which names the file and the key, if they do not match. Tensors of other
    types are the first's. Leaves out optimizers.
    """
    if len(contents) == 1:
        return contents[0]
    for name, content in zip(names[1:], contents[1:]):
        _require_one_run(contents[0], content, f"{name} and {names[0]}")
    parts = [_tensors(content["model"]) for content in contents]
    mean: dict[str, Any] = {}
    for part, first in parts[0].items():
        for name, other in zip(names[1:], parts[1:]):
            _require_alike(first, other.get(part), f"{name} and {names[0]}: {part}")
        for name, tensors in zip(names, parts):
            _require_finite(tensors[part], f"{name}: {part}")
        mean[part] = {
            key: _mean(tensors[part][key] for tensors in parts)
            if value.is_floating_point()
            else value
            for key, value in first.items()
        }
    return {**contents[0], "model": mean}


def _mean(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    stacked = torch.stack(list(tensors))
    return stacked.double().mean(0).to(stacked.dtype)


def _require_finite(tensors: Mapping[str, torch.Tensor], where: str) -> None:
    broken = [key for key, value in tensors.items() if not safe_load.is_finite(value).all()]
    if broken:
        raise CheckpointError(
            f"{where} contains NaN or infinity in {len(broken)} tensor(s), such as {broken[0]}: so "
            "would the mean. Leave this checkpoint out."
        )


def _require_one_run(first: Mapping[str, Any], other: Mapping[str, Any], where: str) -> None:
    """Raise CheckpointError, which names the first difference, for unlike trainings."""
    settings, others = _settings(first), _settings(other)
    for key in sorted({*settings, *others}) if settings and others else ():
        values = [values.get(key, "nothing") for values in (others, settings)]
        if values[0] != values[1]:
            raise CheckpointError(
                f"{where} are of unlike trainings: {key} is {values[0][:80]} and {values[1][:80]}. "
                "Only checkpoints of one run have a mean that works."
            )


def _settings(content: Mapping[str, Any]) -> dict[str, str]:
    """Return what decides which weights a training finds, as JSON; {} if it is not known."""
    state = content.get("ddp_state")
    if state is not None:
        saved = tree.at(state, "defines.config")
        settings = dict(saved) if isinstance(saved, dict) else {}
    else:
        named = tree.named({**_config(content), "algo_name": content.get("algo_name")})
        settings = {key: json.dumps(value, default=str, sort_keys=True) for key, value in named}
    return {key: value for key, value in settings.items() if _DECIDES.match(key)}


def _require_alike(first: Mapping, other: Mapping | None, where: str) -> None:
    odd = [key for key in set(first) ^ set(other or {})]
    both = set(first) & set(other or {})
    odd += [key for key in both if _kind(first[key]) != _kind(other[key])]
    if odd:
        raise CheckpointError(
            f"{where} differ in {len(odd)} tensor(s), such as {sorted(odd)[0]}: only checkpoints "
            "of the same nets in the same layout can be averaged."
        )


def _kind(tensor: torch.Tensor) -> tuple:
    return tensor.shape, tensor.is_floating_point()


def converted(content: dict[str, Any], layout: str, ema: bool, name: Any) -> dict[str, Any]:
    """Return `content` in another layout; `ema`: the averaged weights in place of the nets.

    Raises CheckpointError if there are none.
    """
    parts = _tensors(content["model"])
    if ema:
        if "ema" not in parts:
            raise CheckpointError(f"{name} has no averaged weights: it was trained without EMA.")
        parts = {"nets": parts["ema"]}
    model = {key: value for key, value in content["model"].items() if not ema and key not in parts}
    for part, tensors in parts.items():
        model[part] = tensors if layout == "keep" else _rename_keys(tensors, layout)
    if ema:
        model["ema"] = None
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
    """Return ("policy.obs_encoder", "nets.0.weight"): nets are two levels deep."""
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


def _tensors(model: Mapping[str, Any]) -> dict[str, dict[str, torch.Tensor]]:
    """Return the parts "nets" and "ema", if present."""
    return {part: dict(model[part]) for part in ("nets", "ema") if model.get(part)}


def _count(tensors: Mapping[str, torch.Tensor]) -> int:
    return sum(value.numel() for value in tensors.values())


def parts(content: Mapping[str, Any]) -> Iterator[str]:
    """Yield the parts of a checkpoint and their sizes."""
    for part, tensors in _tensors(content["model"]).items():
        yield f"{part} ({_count(tensors):,} numbers)"


def _config(content: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        config = files.parse_json(content.get("config") or "{}")
    except (TypeError, ValueError):
        return {}
    return config if isinstance(config, dict) else {}


def make_folder(output: Path) -> None:
    """Make the folder of the file that `write` will make, before what takes long."""
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise torch_save.save_error(output, error) from error


def write(content: Mapping[str, Any], output: Path, name: Any) -> None:
    """Write a checkpoint, read from `name`. Raises CheckpointError if that fails."""
    if output.suffix != ".safetensors":
        torch_save.save(dict(content), output, follow=False)
        return
    try:
        from safetensors.torch import save
    except ImportError as error:
        raise CheckpointError(
            f"{output}: safetensors cannot be imported ({error}). pip install safetensors."
        ) from error
    parts = _tensors(content["model"])
    flat = {
        f"{part}.{key}": value.contiguous().clone()
        for part, tensors in parts.items()
        for key, value in tensors.items()
    }
    words = {"algo_name": str(content.get("algo_name")), "config": str(content.get("config"))}
    try:
        with atomic_files.atomic_open(output, "wb") as file:
            file.write(save(flat, words))
    except OSError as error:
        raise torch_save.save_error(output, error) from error
    except (KeyError, ValueError) as error:  # a kind of number, or text that is not UTF-8
        raise CheckpointError(
            f"{output}: safetensors has no form for a part of {name} ({error!r}). Name a file that "
            "ends in .pth."
        ) from error
