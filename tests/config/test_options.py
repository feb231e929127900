"""Options: precedence, types, and one clear error for what is unknown or bad."""

from __future__ import annotations

import dataclasses

import pytest

from robomimic_ddp.config import options, plan
from robomimic_ddp.config.env import LaunchEnv
from robomimic_ddp.errors import OptionError


def test_defaults():
    resolved = options.resolve()
    assert resolved.values == options.Options()
    assert set(resolved.sources.values()) == {"default"}


def test_command_line_over_environment_over_file():
    resolved = options.resolve(
        {"lr_scaling": "sqrt"},
        {"lr_scaling": "linear", "batch": "global"},
        {"lr_scaling": "auto", "batch": "per_rank", "verify": False},
    )
    assert (resolved.values.lr_scaling, resolved.values.batch, resolved.values.verify) == (
        "sqrt",
        "global",
        False,
    )
    assert [resolved.sources[name] for name in ("lr_scaling", "batch", "verify", "mode")] == [
        "command line",
        "environment",
        "file",
        "default",
    ]


@pytest.mark.parametrize(
    "text, value", [("true", True), ("0", False), ("On", True), (True, True), ("no", False)]
)
def test_booleans_from_text(text, value):
    assert options.resolve(environment={"verify": text}).values.verify is value


@pytest.mark.bad_input
@pytest.mark.parametrize(
    "layer, words",
    [
        (
            {"command_line": {"lr_scalin": "sqrt"}},
            ["ddp.lr_scalin", "Did you mean ddp.lr_scaling?"],
        ),
        (
            {"environment": {"lr_scalin": "sqrt"}},
            ["ROBOMIMIC_DDP_LR_SCALIN", "Did you mean ROBOMIMIC_DDP_LR_SCALING?"],
        ),
        ({"file": {"zzz": 1}}, ["ddp.zzz is not an option", "docs/options.md lists all"]),
        ({"file": {"fsdp_mesh": 1}}, ["ddp.fsdp_reshard or ddp.fsdp_replicas?"]),
        ({"file": {"lr_scaling": "cube"}}, ["ddp.lr_scaling='cube'", "linear", "default none"]),
        ({"file": {"verify": "perhaps"}}, ["true | false"]),
        ({"file": {"verify": None}}, ["ddp.verify=None"]),
        ({"command_line": {"timeout": "soon"}}, ["ddp.timeout='soon'", "number"]),
        ({"command_line": {"timeout": "nan"}}, ["ddp.timeout"]),
        ({"command_line": {"accumulate": "2.5"}}, ["ddp.accumulate='2.5'", "a whole number"]),
        ({"file": {"accumulate": 0}}, ["ddp.accumulate=0", "at least 1"]),
        ({"command_line": {"timeout": "inf"}}, ["ddp.timeout"]),
        ({"command_line": {"timeout": True}}, ["ddp.timeout=True"]),
        ({"command_line": {"bucket_mb": 0}}, ["at least 0.1"]),
        ({"command_line": {"timeout": "1e300"}}, ["ddp.timeout='1e300'", "at most 2e+06"]),
        ({"file": {"prefetch": 99999999999}}, ["ddp.prefetch=99999999999", "at most 1000"]),
        ({"file": {"accumulate": 10**400}}, ["ddp.accumulate", "at most 100000"]),
        ({"file": {"workers": "9" * 5000}}, ["ddp.workers", "a whole number"]),
        ({"command_line": {"mode": ["ddp"]}}, ["ddp.mode"]),
        ({"file": {"comm": "powersgd:0"}}, ["'powersgd:0'", "powersgd:N (N from 1 to 4096)"]),
        ({"file": {"comm": "powersgd:x"}}, ["'powersgd:x'", "powersgd:N"]),
        ({"file": {"comm": "bf16:2"}}, ["'bf16:2'"]),
        ({"file": {"debug": "false:2"}}, ["'false:2'", "true:N"]),
        ({"environment": {"powersgd_rank": "0"}}, ["DDP_POWERSGD_RANK='0'", "comm=powersgd:N"]),
        ({"file": {"debug_interval": "often"}}, ["ddp.debug_interval='often'", "debug=true:N"]),
    ],
)
def test_bad_input_names_option_and_remedy(layer, words):
    with pytest.raises(OptionError) as caught:
        options.resolve(**layer)
    for word in words:
        assert word in str(caught.value)
    listed = [name for name in options.FIELDS if name in str(caught.value)]
    assert len(listed) < 5, "a message, not the list of options"


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        *((raw, "true") for raw in (True, "true", "True", "1", "on", "yes")),
        *((raw, "false") for raw in (False, "false", "0", "off", "no")),
        ("AUTO", "auto"),
    ],
)
def test_resume_takes_all_spellings_of_true_and_false(raw, value):
    assert options.parse("resume", raw, "ddp.resume") == value


@pytest.mark.parametrize(
    ("layers", "comm", "number"),
    [
        ([{"comm": "powersgd"}], "powersgd", 2),
        ([{"comm": "PowerSGD:04"}], "powersgd:4", 4),
        ([{"comm": "powersgd", "powersgd_rank": 4}], "powersgd:4", 4),
        ([{"powersgd_rank": 4, "comm": "powersgd:8"}], "powersgd:8", 8),
        ([{"comm": "powersgd"}, {"powersgd_rank": "4"}], "powersgd:4", 4),
        ([{"comm": "powersgd:8"}, {"powersgd_rank": 4.0}], "powersgd:4", 4),
        ([{"powersgd_rank": 4}, {"comm": "powersgd"}], "powersgd:4", 4),
        ([{"powersgd_rank": 4}, {"comm": "powersgd:2"}], "powersgd", 2),
        ([{"powersgd_rank": 4}], "none", None),
    ],
)
def test_older_spellings_are_numbers_of_an_option(layers, comm, number):
    resolved = options.resolve(file=layers[0], environment=dict(*layers[1:]))
    assert resolved.values.comm == comm
    assert number is None or resolved.values.number("comm") == number
    former = [layer for layer in layers if "powersgd_rank" in layer]
    assert len(resolved.notes) == len(former)
    for layer, note in zip(former, resolved.notes):
        prefix = "ddp.comm" if layer is layers[0] else "ROBOMIMIC_DDP_COMM"
        assert note.endswith(f"is an older spelling of {prefix}=powersgd:4")


def test_an_older_spelling_is_noted_in_the_plan_and_in_debug():
    resolved = options.resolve({"debug": True, "debug_interval": 7})
    values = resolved.values
    assert (values.debug, values.kind("debug"), values.number("debug")) == ("true:7", "true", 7)
    assert options.resolve({"debug": "yes"}).values.number("debug") == 100
    note = "note: ddp.debug_interval=7 is an older spelling of ddp.debug=true:7"
    assert resolved.notes == (note,)
    made = plan.make_plan(LaunchEnv(), resolved, visible_gpus=0, use_cuda=False, batch_size=4)
    assert note in made.describe()


def test_options_of_an_earlier_versions_files_read_as_todays():
    written = {"comm": "powersgd", "powersgd_rank": 4, "debug": False, "debug_interval": 100.0}
    assert options.in_present_words(written) == {"comm": "powersgd:4", "debug": "false"}
    assert options.in_present_words({"comm": "none", "powersgd_rank": 2}) == {"comm": "none"}
    assert options.in_present_words({"debug": True, "debug_interval": 8.0}) == {"debug": "true:8"}
    now = dataclasses.asdict(options.Options())
    assert options.in_present_words(now) == now


def test_every_option_has_help_and_a_row_in_the_table():
    table = options.markdown_table()
    for name, field in options.FIELDS.items():
        assert field.metadata["help"].endswith(".")
        assert f"| `{name}` |" in table
    main, _, advanced = table.partition("## Advanced")
    assert 18 <= main.count("\n| `") <= 24, "the first table is for those who begin"
    assert "| `comm` |" in main and "`powersgd:N`" in main and "| `bucket_mb` |" in advanced
