"""Every option of the retrofit, once: name, type, default, help.

Three ways to set each, the first found wins: command line `ddp.lr_scaling=sqrt`, environment
`ROBOMIMIC_DDP_LR_SCALING=sqrt`, file `"ddp": {"lr_scaling": "sqrt"}`; else the default.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from robomimic_ddp.errors import OptionError


def _option(
    default: Any,
    help: str,
    choices: tuple | None = None,
    minimum: float | None = None,
    maximum: float | None = None,
    or_count: bool = False,
) -> Any:
    """`maximum`: beyond it nothing useful is left, and other libraries overflow or hang.
    `or_count`: beside its choices the option takes a whole number of at least 0, as text.
    """
    metadata = {"help": help, "choices": choices, "or_count": or_count}
    metadata |= {"minimum": minimum, "maximum": maximum}
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Options:
    """The values of one run. Fields are the options; their metadata carries help, choices, minimum
    and maximum.
    """

    mode: str = _option(
        "auto",
        "How to parallelise; `auto` follows the launcher. `fsdp`: torch's FSDP2, for policies that "
        "do not fit on a GPU; weights, gradients, optimizer state and average are sharded.",
        ("auto", "ddp", "dp", "fsdp", "single"),
    )
    backend: str = _option(
        "auto",
        "Process-group backend; `auto` is NCCL for CUDA tensors and gloo for the rest.",
        ("auto", "nccl", "gloo"),
    )
    timeout: float = _option(
        1800.0, "Seconds that a rank waits for the others in a collective.", minimum=1, maximum=2e6
    )
    batch: str = _option(
        "per_rank",
        "Whether `train.batch_size` is for each rank and micro-batch, or for all of them together.",
        ("per_rank", "global"),
    )
    accumulate: int = _option(
        1,
        "Micro-batches in one optimizer step: a batch that many times as large, in the memory of "
        "one.",
        minimum=1,
        maximum=100_000,
    )
    lr_scaling: str = _option(
        "none",
        "Learning rate times f (linear) or sqrt(f), f = samples per step / `train.batch_size`; "
        "`auto`: "
        "linear under 100 M parameters, sqrt from there, none when fine-tuning from a checkpoint.",
        ("none", "linear", "sqrt", "auto"),
    )
    schedule: str = _option(
        "steps",
        "An epoch of `experiment.epoch_every_n_steps` has as many steps on every number of ranks, "
        "or as many `samples`: then N ranks finish in 1/N of the steps, and warm-up and "
        "learning-rate schedules that count steps shorten alike.",
        ("steps", "samples"),
    )
    preset: str = _option(
        "fast",
        "`fast`: the host's steps in fewer operations, equal but for rounding; `safe`: its own "
        "arithmetic, to the bit on one rank; `max`: `fast`, and what of `precision=bf16`, "
        "`compile=true` (both on GPUs that have it) and `comm=bf16` (between ranks) was left open.",
        ("fast", "safe", "max"),
    )
    precision: str = _option(
        "fp32",
        "What the nets compute in while training (torch's autocast); weights, loss and optimizer "
        "stay in fp32.",
        ("fp32", "bf16", "fp16"),
    )
    compile: str = _option(
        "false",
        "torch.compile of the nets' training forward and backward; `reduce-overhead` replays CUDA "
        "graphs, too.",
        ("false", "true", "reduce-overhead"),
    )
    channels_last: bool = _option(
        False, "Weights of two-dimensional convolutions are channels last in memory."
    )
    activation_checkpointing: bool = _option(
        False,
        "Image encoders keep their inputs only and compute the rest again in the backward pass: "
        "less memory, more time.",
    )
    comm: str = _option(
        "none",
        "Gradients travel between ranks in 16 bits (half the bytes), or by PowerSGD as two thin "
        "factors of each matrix, by torch's own hooks.",
        ("none", "fp16", "bf16", "powersgd"),
    )
    powersgd_rank: int = _option(2, "Columns of PowerSGD's factors.", minimum=1, maximum=4096)
    powersgd_start: int = _option(
        1000,
        "Steps of the run with whole gradients before PowerSGD begins.",
        minimum=2,
        maximum=1e12,
    )
    bucket_mb: float = _option(
        25.0, "Size of DDP's gradient buckets, in MiB.", minimum=0.1, maximum=1e6
    )
    gradient_as_bucket_view: bool = _option(True, "Gradients share the memory of DDP's buckets.")
    static_graph: bool = _option(
        False, "Tell DDP that every step uses the same parameters in the same order."
    )
    find_unused_parameters: bool = _option(
        False, "Let DDP search each step for parameters that got no gradient."
    )
    buffer_sync: str = _option(
        "auto",
        "DDP copies the main rank's buffers to all ranks before each training forward; `auto`: of "
        "nets whose forward may change them (BatchNorm).",
        ("auto", "true", "false"),
    )
    fsdp_replicas: int = _option(
        1,
        "With `mode=fsdp`: copies of the shards (HSDP), such as the number of nodes: ranks that "
        "follow each other share one.",
        minimum=1,
        maximum=100_000,
    )
    fsdp_reshard: bool = _option(
        True,
        "With `mode=fsdp`: units are sharded again after their forward and gathered once more in "
        "the backward pass: less memory, more messages.",
    )
    fsdp_offload: bool = _option(
        False, "With `mode=fsdp` on GPUs: shards and the optimizer's step are on the CPU."
    )
    sync_batchnorm: str = _option(
        "auto",
        "BatchNorm normalises with the samples of all ranks, as one process would; `false`: with "
        "each rank's own, as plain DDP does; `auto` does so too, and the plan says it.",
        ("auto", "true", "false"),
    )
    deterministic: bool = _option(
        False,
        "Restrict torch to algorithms that give the same bits each time, on GPUs too; an operation "
        "that has none is an error. The order of the data is always reproducible from the seed.",
    )
    workers: str = _option(
        "config",
        "Data workers of a rank: `config` is the host's `train.num_data_workers`; `auto` this "
        "rank's share of the node's cores, one of them left to training.",
        ("config", "auto"),
        or_count=True,
    )
    pin_memory: str = _option(
        "auto",
        "Batches are in pinned memory; `auto`: as the host says, and where training is on a GPU "
        "with a preset other than `safe`.",
        ("auto", "true", "false"),
    )
    persistent_workers: bool = _option(
        False, "Data workers live on from pass to pass; their random streams then do, too."
    )
    prefetch: int = _option(
        0,
        "Batches that each data worker, or the RLDS pipeline, makes ahead; 0: 2.",
        minimum=0,
        maximum=1000,
    )
    resume: str = _option(
        "false",
        "Resume the newest run of the same experiment name, in its directory, from its "
        "`ddp_state.pth`; `auto`: where there is none, begin.",
        ("false", "true", "auto"),
    )
    trust_checkpoint: bool = _option(
        False,
        "Load `experiment.ckpt_path` though it asks for more than tensors, plain values and the "
        "host's config: it can run any program.",
    )
    skip_corrupt: bool = _option(
        False,
        "RLDS: leave out damaged episodes, replace windows that cannot be read, and count both, "
        "instead of stopping.",
    )
    language_model: str = _option(
        "auto",
        "RLDS: a folder, or a name for transformers, of the model that embeds instructions; `auto` "
        "is "
        "the one that hosts use under the observation key of the embedding.",
    )
    fast_decode: bool = _option(
        False,
        "RLDS: decode JPEG pictures at 1/2, 1/4 or 1/8 of their size where that is still at least "
        "what is delivered; cheaper, and slightly other pixels.",
    )
    shuffle: str = _option(
        "total",
        "RLDS: whether `train.shuffle_buffer_size` is for all ranks together, or for each.",
        ("total", "per_rank"),
    )
    cache: str = _option(
        "none",
        "`ram`, or a folder on a local disk, in which decoded frames are kept for all ranks and "
        "jobs of the node; made by the first run, from then on nothing is decoded. RLDS, and HDF5 "
        "unless `train.hdf5_cache_mode=all`.",
    )
    cache_gb: float = _option(
        0.0,
        "Most GiB of frames in the folder of `cache`; 0: what is free, of memory at most half of "
        "the machine's.",
        minimum=0,
        maximum=1e6,
    )
    verify: bool = _option(
        True, "Prove at run time that ranks agree where they must and differ where they must."
    )
    debug: bool = _option(
        False, "Every rank prints what it has and reads, and a line at its first step and later."
    )
    debug_interval: float = _option(
        100.0, "Steps between a rank's lines of `debug`.", minimum=1, maximum=1e12
    )


FIELDS = {field.name: field for field in dataclasses.fields(Options)}


@dataclass(frozen=True)
class ResolvedOptions:
    """`values`, and for each option where it came from: "command line", "environment", "file" or
    "default".
    """

    values: Options
    sources: Mapping[str, str]


def resolve(
    command_line: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    file: Mapping[str, Any] | None = None,
) -> ResolvedOptions:
    """Merges the three layers over the defaults. Raises OptionError for unknown names and bad
    values.
    """
    values: dict[str, Any] = {}
    sources = {name: "default" for name in FIELDS}
    for source, layer in (
        ("file", file),
        ("environment", environment),
        ("command line", command_line),
    ):
        for name, raw in (layer or {}).items():
            values[name] = parse(name, raw, spelling(name, source))
            sources[name] = source
    return ResolvedOptions(Options(**values), sources)


def spelling(name: str, source: str) -> str:
    """How a user wrote option `name` in `source`, for messages."""
    return f"ROBOMIMIC_DDP_{name.upper()}" if source == "environment" else f"ddp.{name}"


def parse(name: str, raw: Any, spelled: str) -> Any:
    """The value of option `name` from text or JSON. Raises OptionError, naming the option as
    `spelled`.
    """
    if name not in FIELDS:
        close = difflib.get_close_matches(name, FIELDS, n=1)
        hint = f" Did you mean {spelled[: -len(name)]}{_like(spelled, close[0])}?" if close else ""
        raise OptionError(f"{spelled} is not an option.{hint} Options: {', '.join(FIELDS)}.")
    field = FIELDS[name]
    kind = type(field.default)
    value = _convert(kind, raw)
    choices = field.metadata["choices"]
    minimum, maximum = field.metadata["minimum"], field.metadata["maximum"]
    if choices and isinstance(value, str):  # paths and names keep their letters
        value = value.lower()
        if "true" in choices and value not in choices and value in _TRUTH:
            value = str(_TRUTH[value]).lower()
    or_count = field.metadata["or_count"]
    is_count = or_count and value is not None and value.isascii() and value.isdecimal()
    is_count = is_count and len(value) < 10  # who decides about the number knows the machine
    if (
        value in (None, "")
        or (isinstance(raw, bool) and kind is str and not choices)
        or (choices and value not in choices and not is_count)
        or (minimum is not None and not minimum <= value <= maximum)
    ):
        expected = (
            " | ".join(choices) + (" | a whole number" if or_count else "")
            if choices
            else "true | false"
            if kind is bool
            else "text"
            if kind is str
            else f"a {'whole ' if kind is int else ''}number of at least {minimum:g}, at most "
            f"{maximum:g}"
        )
        raise OptionError(f"{spelled}={raw!r}: expected {expected} (default {field.default}).")
    return value


def _like(spelled: str, name: str) -> str:
    return name.upper() if spelled.startswith("ROBOMIMIC_DDP_") else name


_TRUTH = {
    **dict.fromkeys(("true", "1", "on", "yes"), True),
    **dict.fromkeys(("false", "0", "off", "no"), False),
}


def _convert(kind: type, raw: Any) -> Any:
    """`raw` as `kind`, or None where it is not one."""
    if kind is bool:
        if isinstance(raw, bool):
            return raw
        return _TRUTH.get(str(raw).strip().lower())
    if kind in (int, float):
        if isinstance(raw, bool):
            return None
        try:
            value = float(raw)
        except (TypeError, ValueError, OverflowError):
            return None
        whole = math.isfinite(value) and (kind is float or value.is_integer())
        return kind(value) if whole else None
    return str(raw).strip() if isinstance(raw, (str, int)) else None


_KINDS = {bool: "true, false", int: "number", float: "number", str: "text"}


def markdown_table() -> str:
    """The table of docs/options.md, generated so that it cannot go stale."""
    rows = ["| option | default | values | meaning |", "|---|---|---|---|"]
    for name, field in FIELDS.items():
        values = ", ".join(f"`{choice}`" for choice in field.metadata["choices"] or ())
        values += ", number" if field.metadata["or_count"] else ""
        values = values or _KINDS[type(field.default)]
        default = str(field.default).lower() if isinstance(field.default, bool) else field.default
        rows.append(f"| `{name}` | `{default}` | {values} | {field.metadata['help']} |")
    return "\n".join(rows)
