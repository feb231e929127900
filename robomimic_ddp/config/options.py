"""Every option of the retrofit, once: name, type, default, help.

Three ways to set each, the first found wins: command line `ddp.lr_scaling=sqrt`, environment
`ROBOMIMIC_DDP_LR_SCALING=sqrt`, file `"ddp": {"lr_scaling": "sqrt"}`; else the default. `kwargs`
and `loader` are mappings, of which the three are merged by name.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from robomimic_ddp.config import option_values
from robomimic_ddp.errors import OptionError, did_you_mean


def _option(
    default: Any,
    help: str,
    choices: tuple = (),
    minimum: float | None = None,
    maximum: float | None = None,
    also: tuple[str, str] | None = None,
) -> Any:
    """Declare an option. `maximum`: beyond it nothing useful is left, and other libraries overflow
    or hang. `also`: what it takes besides its choices, in words and as a regular expression.
    """
    metadata = {"help": help, "choices": choices, "also": also}
    metadata |= {"minimum": minimum, "maximum": maximum}
    if isinstance(default, dict):
        return dataclasses.field(default_factory=dict, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Options:
    """The values of one run. Fields are the options; their metadata is what `_option` takes."""

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
        "`auto`: linear under 100 M parameters, sqrt from there, none when fine-tuning from a "
        "checkpoint.",
        ("none", "linear", "sqrt", "auto"),
    )
    schedule: str = _option(
        "steps",
        "`steps`: an epoch has `experiment.epoch_every_n_steps` steps on any number of ranks; "
        "`samples`: it has as many samples as in one process, so N ranks take 1/N of the steps, "
        "and warm-up and learning-rate schedules that count steps shorten with it.",
        ("steps", "samples"),
    )
    preset: str = _option(
        "fast",
        "`fast`: the host's steps in fewer operations, equal but for rounding; `safe`: the host's "
        "own arithmetic and settings, on one rank equal to the bit wherever the host repeats its "
        "bits; `max`: `fast`, TF32 for matrix products, and those that you did not set of "
        "`precision=bf16`, `compile=true` (on GPUs that have them), `comm=bf16` (between ranks).",
        ("fast", "safe", "max"),
    )
    precision: str = _option(
        "fp32",
        "Number format of the nets in training (torch's autocast); weights, loss and optimizer "
        "stay in fp32.",
        ("fp32", "bf16", "fp16"),
    )
    compile: str = _option(
        "false",
        "torch.compile (torch 2.6 or later) of the nets' training forward and backward; "
        "`reduce-overhead` replays CUDA graphs, too.",
        ("false", "true", "reduce-overhead"),
    )
    activation_checkpointing: bool = _option(
        False,
        "Image encoders keep only their inputs and recompute the rest in the backward pass: less "
        "memory, more time.",
    )
    comm: str = _option(
        "none",
        "Gradients travel between ranks in 16 bits (half the bytes), or by PowerSGD as two thin "
        "factors of each matrix, by torch's own hooks; `powersgd:4`: factors of 4 columns.",
        ("none", "fp16", "bf16"),
        also=("powersgd:N", "powersgd:[1-9][0-9]{0,3}"),
    )
    kwargs: Mapping[str, Any] = _option(
        {},
        "`ddp.kwargs.NAME=VALUE` goes to torch's DistributedDataParallel, such as "
        "`ddp.kwargs.bucket_cap_mb=50`; in the environment "
        "`ROBOMIMIC_DDP_KWARGS='{bucket_cap_mb: 50}'`. Names from all three places are merged.",
    )
    fsdp_replicas: int = _option(
        1,
        "With `mode=fsdp`: copies of the shards (HSDP), such as the number of nodes: ranks that "
        "follow each other share one.",
        minimum=1,
        maximum=100_000,
    )
    fsdp_offload: bool = _option(
        False, "With `mode=fsdp` on GPUs: keep the shards and run the optimizer's step on the CPU."
    )
    sync_batchnorm: str = _option(
        "auto",
        "BatchNorm normalises with the samples of all ranks, as one process would; `false`: with "
        "each rank's own, as plain DDP does; `auto`: the same as `false`, and the plan reports it.",
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
        also=("a whole number", "[0-9]{1,6}"),
    )
    loader: Mapping[str, Any] = _option(
        {},
        "The same for torch's DataLoader, such as `ddp.loader.prefetch_factor=4`; other arguments "
        "keep the host's values.",
    )
    save_seconds: float = _option(
        60.0,
        "Seconds between saved states, at least; one is also saved after the first and the last "
        "epoch, at a stop and at a new best. A crash loses what was trained since. 0: at every "
        "epoch's end.",
        minimum=0,
        maximum=1e6,
    )
    resume: str = _option(
        "false",
        "Resume the newest run of the same experiment name, in its directory, from its "
        "`ddp_state.pth`; `auto`: start a new run where there is none.",
        ("false", "true", "auto"),
    )
    trust_checkpoint: bool = _option(
        False,
        "Load `experiment.ckpt_path` even if it needs more than tensors and plain values: it can "
        "run arbitrary code. Not accepted in a config file, which somebody else may have written.",
    )
    rollouts: str = _option(
        "training",
        "Who runs the host's rollouts: `training`, split over the ranks, which wait for them; or "
        "`robomimic-ddp evaluate`, from a checkpoint kept of each epoch with rollouts.",
        ("training", "evaluate"),
    )
    skip_corrupt: bool = _option(
        False,
        "RLDS: leave damaged episodes out of the index, and count them, instead of stopping.",
    )
    language_model: str = _option(
        "auto",
        "RLDS: the model that embeds instructions, as a folder or a transformers name; `auto`: the "
        "one that hosts use under the observation key of the embedding.",
    )
    verify: bool = _option(
        True, "Prove at run time that ranks agree where they must and differ where they must."
    )
    profile: int = _option(
        0,
        "Steps of the first epoch, after ten to settle, that torch's profiler records on each "
        "rank, into `profile/` of the run directory, with a line on what limits a step; 0: none.",
        minimum=0,
        maximum=10_000,
    )
    debug: bool = _option(
        False,
        "Every rank prints its parameters, device and data, and a line at its first step and every "
        "100 steps.",
    )

    @property
    def powersgd_rank(self) -> int | None:
        """The columns of PowerSGD's factors; None where gradients travel in another way."""
        kind, _, columns = self.comm.partition(":")
        return int(columns) if kind == "powersgd" else None


FIELDS = {field.name: field for field in dataclasses.fields(Options)}
DEFAULTS = dataclasses.asdict(Options())
KINDS = {
    **{bool: "true | false", int: "a whole number", float: "a number", str: "text"},
    dict: "NAME=VALUE",
}


PASSED_ON = {
    "kwargs": (
        *("bucket_cap_mb", "find_unused_parameters", "gradient_as_bucket_view", "static_graph"),
        *("broadcast_buffers", "forward_sync_buffers"),
    ),
    "loader": (
        *("prefetch_factor", "persistent_workers", "multiprocessing_context"),
        *("pin_memory", "pin_memory_device"),
    ),
}
"""Option -> names of torch's arguments that its users look for among ours."""


@dataclass(frozen=True)
class ResolvedOptions:
    """`values`, and for each option where it came from: "command line", "environment", "file" or
    "default"; for a mapping, the first of them that sets anything in it.
    """

    values: Options
    sources: Mapping[str, str]


def resolve(
    command_line: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    file: Mapping[str, Any] | None = None,
) -> ResolvedOptions:
    """Merge the three layers over the defaults. Raises OptionError for unknown names and bad
    values.
    """
    values: dict[str, Any] = {}
    sources = dict.fromkeys(FIELDS, "default")
    layers = {"file": file, "environment": environment, "command line": command_line}
    for source, layer in layers.items():
        for name, raw in (layer or {}).items():
            value = parse(name, raw, spelling(name, source))
            if name == "trust_checkpoint" and value and source == "file":
                raise OptionError(
                    "ddp.trust_checkpoint is not accepted in a config file, whose author could let "
                    "a checkpoint run arbitrary code here. If you trust it, give it on the command "
                    f"line or as {spelling(name, 'environment')}=true."
                )
            values[name] = {**values.get(name, {}), **value} if isinstance(value, dict) else value
            sources[name] = source
    return ResolvedOptions(Options(**values), sources)


def spelling(name: str, source: str) -> str:
    """Return how a user wrote option `name` in `source`, for messages."""
    return f"ROBOMIMIC_DDP_{name.upper()}" if source == "environment" else f"ddp.{name}"


def parse(name: str, raw: Any, spelled: str) -> Any:
    """Return the value of option `name` from text or JSON. Raises OptionError, naming the option as
    `spelled`.
    """
    if name not in FIELDS:
        raise _unknown(name, spelled)
    default, metadata = DEFAULTS[name], FIELDS[name].metadata
    minimum = metadata["minimum"]
    value = option_values.convert(type(default), raw)
    if metadata["choices"]:  # paths and names keep their letters
        value = option_values.choose(value or "", metadata["choices"], metadata["also"])
    elif isinstance(default, str) and isinstance(raw, bool):
        value = None
    in_range = minimum is None or value is None or minimum <= value <= metadata["maximum"]
    if value in (None, "") or not in_range:
        raise OptionError(f"{spelled}={raw!r}: expected {_expected(name)}.")
    return value


def _unknown(name: str, spelled: str) -> OptionError:
    for option, names in PASSED_ON.items():
        if name in names:
            return OptionError(f"{spelled} is not an option: use ddp.{option}.{name}.")
    known = map(str.upper, FIELDS) if spelled.isupper() else FIELDS
    hint = did_you_mean(spelled[-len(name) :], known, spelled[: -len(name)])
    return OptionError(
        f"{spelled} is not an option.{hint} docs/options.md lists all {len(FIELDS)}."
    )


def _expected(name: str) -> str:
    default, metadata = DEFAULTS[name], FIELDS[name].metadata
    if isinstance(default, dict):
        example = PASSED_ON[name][0]
        variable = spelling(name, "environment")
        return (
            f"ddp.{name}.{example}=VALUE, or in the environment {variable}='{{{example}: VALUE}}'"
        )
    least, most = metadata["minimum"], metadata["maximum"]
    kinds = [*(metadata["choices"] or [KINDS[type(default)]]), *(metadata["also"] or ())[:1]]
    limits = "" if least is None else f" of at least {least:g}, at most {most:g}"
    return f"{' | '.join(kinds)}{limits} (default {default})"
