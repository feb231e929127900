"""Every option of the retrofit, once: name, type, default, help.

Three ways to set each, the first found wins: command line `ddp.lr_scaling=sqrt`, environment
`ROBOMIMIC_DDP_LR_SCALING=sqrt`, file `"ddp": {"lr_scaling": "sqrt"}`; else the default.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Iterator, Mapping
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
    numbered: dict[str, tuple[int, int, int]] | None = None,
    advanced: bool = False,
) -> Any:
    """`maximum`: beyond it nothing useful is left, and other libraries overflow or hang.
    `or_count`: beside its choices the option takes a whole number of at least 0, as text.
    `numbered`: choices that may be followed by a number, as in `powersgd:4`, with its default,
    least and most. `advanced`: for the second table.
    """
    metadata = {"help": help, "choices": choices, "or_count": or_count}
    metadata |= {"minimum": minimum, "maximum": maximum}
    metadata |= {"numbered": numbered or {}, "advanced": advanced}
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
        advanced=True,
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
        False, "Weights of two-dimensional convolutions are channels last in memory.", advanced=True
    )
    activation_checkpointing: bool = _option(
        False,
        "Image encoders keep their inputs only and compute the rest again in the backward pass: "
        "less memory, more time.",
    )
    comm: str = _option(
        "none",
        "Gradients travel between ranks in 16 bits (half the bytes), or by PowerSGD as two thin "
        "factors of each matrix, by torch's own hooks; `powersgd:4`: factors of 4 columns.",
        ("none", "fp16", "bf16", "powersgd"),
        numbered={"powersgd": (2, 1, 4096)},
    )
    powersgd_start: int = _option(
        1000,
        "Steps of the run with whole gradients before PowerSGD begins.",
        minimum=2,
        maximum=1e12,
        advanced=True,
    )
    bucket_mb: float = _option(
        25.0, "Size of DDP's gradient buckets, in MiB.", minimum=0.1, maximum=1e6, advanced=True
    )
    gradient_as_bucket_view: bool = _option(
        True, "Gradients share the memory of DDP's buckets.", advanced=True
    )
    static_graph: bool = _option(
        False, "Tell DDP that every step uses the same parameters in the same order.", advanced=True
    )
    find_unused_parameters: bool = _option(
        False, "Let DDP search each step for parameters that got no gradient.", advanced=True
    )
    buffer_sync: str = _option(
        "auto",
        "DDP copies the main rank's buffers to all ranks before each training forward; `auto`: of "
        "nets whose forward may change them (BatchNorm).",
        ("auto", "true", "false"),
        advanced=True,
    )
    fsdp_replicas: int = _option(
        1,
        "With `mode=fsdp`: copies of the shards (HSDP), such as the number of nodes: ranks that "
        "follow each other share one.",
        minimum=1,
        maximum=100_000,
        advanced=True,
    )
    fsdp_reshard: bool = _option(
        True,
        "With `mode=fsdp`: units are sharded again after their forward and gathered once more in "
        "the backward pass: less memory, more messages.",
        advanced=True,
    )
    fsdp_offload: bool = _option(
        False,
        "With `mode=fsdp` on GPUs: shards and the optimizer's step are on the CPU.",
        advanced=True,
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
        advanced=True,
    )
    persistent_workers: bool = _option(
        False,
        "Data workers live on from pass to pass; their random streams then do, too.",
        advanced=True,
    )
    prefetch: int = _option(
        0,
        "Batches that each data worker, or the RLDS pipeline, makes ahead; 0: 2.",
        minimum=0,
        maximum=1000,
        advanced=True,
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
        advanced=True,
    )
    skip_corrupt: bool = _option(
        False,
        "RLDS: leave damaged episodes out of the index, and count them, instead of stopping.",
    )
    language_model: str = _option(
        "auto",
        "RLDS: a folder, or a name for transformers, of the model that embeds instructions; `auto` "
        "is the one that hosts use under the observation key of the embedding.",
    )
    verify: bool = _option(
        True, "Prove at run time that ranks agree where they must and differ where they must."
    )
    log: str = _option(
        "full",
        "`compact`: one line in place of the config that hosts print at their start; it is in "
        "`config.json` of the run directory.",
        ("full", "compact"),
    )
    debug: str = _option(
        "false",
        "Every rank prints what it has and reads, and a line at its first step and every 100 "
        "steps; `true:10`: every 10 steps.",
        ("false", "true"),
        numbered={"true": (100, 1, 10**12)},
    )

    def kind(self, name: str) -> str:
        """The value of a numbered option without its number."""
        return getattr(self, name).partition(":")[0]

    def number(self, name: str) -> int:
        """The number of a numbered option, of a kind that has one."""
        kind, _, number = getattr(self, name).partition(":")
        return int(number or FIELDS[name].metadata["numbered"][kind][0])


FIELDS = {field.name: field for field in dataclasses.fields(Options)}
_FORMER = {"powersgd_rank": ("comm", "powersgd"), "debug_interval": ("debug", "true")}
"""Options of earlier versions: the option and the value whose number they are now."""
_CLOSE = 3
"""Most options that the message for an unknown one names."""


@dataclass(frozen=True)
class ResolvedOptions:
    """`values`, and for each option where it came from: "command line", "environment", "file" or
    "default". `notes`: sentences on older spellings, for the user.
    """

    values: Options
    sources: Mapping[str, str]
    notes: tuple[str, ...] = ()


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
    numbers: dict[str, int] = {}
    notes: dict[str, str] = {}
    for source, layer in (
        ("file", file),
        ("environment", environment),
        ("command line", command_line),
    ):
        given = layer or {}
        for name in sorted(given, key=_FORMER.__contains__, reverse=True):
            raw, spelled = given[name], spelling(name, source)
            if name in _FORMER:
                option, kind = _FORMER[name]
                numbers[option] = _former_number(name, raw, spelled)
                notes[option] = (
                    f"note: {spelled}={raw} is an older spelling of "
                    f"{spelling(option, source)}={kind}:{numbers[option]}"
                )
                continue
            values[name] = parse(name, raw, spelled)
            sources[name] = source
            if ":" in str(raw):
                numbers.pop(name, None)  # it is nearer to the user, or the present spelling
    for option, number in numbers.items():
        kind = next(kind for of, kind in _FORMER.values() if of == option)
        if values.get(option, "").partition(":")[0] == kind:
            values[option] = parse(option, f"{kind}:{number}", spelling(option, "file"))
    return ResolvedOptions(Options(**values), sources, tuple(notes.values()))


def in_present_words(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Options in a file of a run, which an earlier version may have written, as today's."""
    words = {name: value for name, value in saved.items() if name not in _FORMER}
    for name, (option, kind) in _FORMER.items():
        if isinstance(words.get(option), bool):
            words[option] = str(words[option]).lower()
        if name in saved and words.get(option) == kind:
            words[option] = parse(option, f"{kind}:{int(saved[name])}", option)
    return words


def _former_number(name: str, raw: Any, spelled: str) -> int:
    option, kind = _FORMER[name]
    _, least, most = FIELDS[option].metadata["numbered"][kind]
    number = _convert(float, raw)
    if number is None or not least <= number <= most:
        raise OptionError(
            f"{spelled}={raw!r}: expected a whole number of at least {least}, at most {most} "
            f"(today's spelling: {option}={kind}:NUMBER)."
        )
    return int(number)


def spelling(name: str, source: str) -> str:
    """How a user wrote option `name` in `source`, for messages."""
    return f"ROBOMIMIC_DDP_{name.upper()}" if source == "environment" else f"ddp.{name}"


def parse(name: str, raw: Any, spelled: str) -> Any:
    """The value of option `name` from text or JSON. Raises OptionError, naming the option as
    `spelled`.
    """
    if name not in FIELDS:
        close = difflib.get_close_matches(name, FIELDS, n=_CLOSE)
        likely = " or ".join(f"{spelled[: -len(name)]}{_like(spelled, one)}" for one in close)
        hint = f" Did you mean {likely}?" if close else ""
        raise OptionError(
            f"{spelled} is not an option.{hint} docs/options.md lists all {len(FIELDS)}."
        )
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
    numbered = field.metadata["numbered"]
    value = _numbered(numbered, value) if numbered and value else value
    kind_of = value.partition(":")[0] if numbered and value else value
    if (
        value in (None, "")
        or (isinstance(raw, bool) and kind is str and not choices)
        or (choices and kind_of not in choices and not is_count)
        or (minimum is not None and not minimum <= value <= maximum)
    ):
        expected = (
            " | ".join([*choices, *_with_numbers(numbered)])
            + (" | a whole number" if or_count else "")
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


def _numbered(numbered: Mapping[str, tuple[int, int, int]], value: str) -> str | None:
    """`powersgd:02` as `powersgd`, where 2 is the default; None for what is no such number."""
    kind, colon, number = value.partition(":")
    if not colon:
        return value
    default, least, most = numbered.get(kind, (0, 1, 0))
    is_number = number.isascii() and number.isdecimal() and len(number) < 20
    if not (is_number and least <= int(number) <= most):
        return None
    return kind if int(number) == default else f"{kind}:{int(number)}"


def _with_numbers(numbered: Mapping[str, tuple[int, int, int]]) -> Iterator[str]:
    for kind, (_, least, most) in numbered.items():
        yield f"{kind}:N (N from {least} to {most})"


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
    """The tables of docs/options.md, generated so that they cannot go stale."""
    ours = [name for name, field in FIELDS.items() if not field.metadata["advanced"]]
    rest = [name for name in FIELDS if name not in ours]
    former = ", ".join(f"`{name}`: `{of}={kind}:N`" for name, (of, kind) in _FORMER.items())
    parts = [
        *_rows(ours),
        "",
        "## Advanced",
        "",
        _ADVANCED,
        "",
        *_rows(rest),
        "",
        "## Older spellings",
        "",
    ]
    return "\n".join([*parts, f"Accepted, with a note in the log: {former}."])


_ADVANCED = "What DDP, FSDP and loaders do inside. Few runs need them."


def _rows(names: list[str]) -> Iterator[str]:
    yield "| option | default | values | meaning |"
    yield "|---|---|---|---|"
    for name in names:
        field = FIELDS[name]
        numbered = (f"{kind}:N" for kind in field.metadata["numbered"])
        choices = (*(field.metadata["choices"] or ()), *numbered)
        values = ", ".join(f"`{choice}`" for choice in choices)
        values += ", number" if field.metadata["or_count"] else ""
        values = values or _KINDS[type(field.default)]
        default = str(field.default).lower() if isinstance(field.default, bool) else field.default
        yield f"| `{name}` | `{default}` | {values} | {field.metadata['help']} |"
