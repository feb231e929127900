"""Options: precedence, types, and one clear error for what is unknown or bad."""

from __future__ import annotations

import options_page
import pytest

from robomimic_ddp.config import options
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
    names = ("lr_scaling", "batch", "verify", "mode")
    assert [getattr(resolved.values, name) for name in names] == ["sqrt", "global", False, "auto"]
    assert [resolved.sources[name] for name in names] == [
        "command line",
        "environment",
        "file",
        "default",
    ]


@pytest.mark.bad_input
def test_a_config_file_does_not_trust_a_checkpoint():
    trusted = {"trust_checkpoint": "true"}
    assert options.resolve(trusted, file={"trust_checkpoint": False}).values.trust_checkpoint
    assert options.resolve(environment=trusted).values.trust_checkpoint
    with pytest.raises(OptionError, match="not accepted in a config file"):
        options.resolve(trusted, file=trusted)


def test_mappings_are_merged_by_name():
    resolved = options.resolve(
        {"kwargs": {"bucket_cap_mb": 50}},
        {"kwargs": "{bucket_cap_mb: 1, static_graph: true}", "loader": '{"pin_memory": false}'},
        {"kwargs": {"static_graph": False, "find_unused_parameters": True}},
    )
    expected = {"bucket_cap_mb": 50, "static_graph": True, "find_unused_parameters": True}
    assert resolved.values.kwargs == expected
    assert resolved.values.loader == {"pin_memory": False}
    sources = [resolved.sources[name] for name in ("kwargs", "loader")]
    assert sources == ["command line", "environment"]


@pytest.mark.parametrize(
    ("name", "raw", "value"),
    [
        *(("verify", raw, True) for raw in ("On", True)),
        ("verify", "0", False),
        *(("resume", raw, "true") for raw in (True, "True", "1", "on", "yes")),
        *(("resume", raw, "false") for raw in (False, "0", "off", "no")),
        ("resume", "AUTO", "auto"),
        ("compile", True, "true"),
        ("workers", 3, "3"),
        ("comm", "PowerSGD:4", "powersgd:4"),
        ("language_model", "/Models/T5", "/Models/T5"),
    ],
)
def test_values_from_text_and_json(name, raw, value):
    assert options.parse(name, raw, f"ddp.{name}") == value


def test_the_number_of_columns_is_part_of_comm():
    assert options.Options(comm="powersgd:4").powersgd_rank == 4
    assert options.Options(comm="bf16").powersgd_rank is None


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
        ({"file": {"lr_scaling": "cube"}}, ["ddp.lr_scaling='cube'", "linear", "default none"]),
        ({"file": {"verify": "perhaps"}}, ["true | false"]),
        ({"environment": {"batch": "huge"}}, ["ROBOMIMIC_DDP_BATCH='huge'", "per_rank | global"]),
        ({"command_line": {"timeout": "soon"}}, ["ddp.timeout='soon'", "number"]),
        ({"command_line": {"timeout": "nan"}}, ["ddp.timeout"]),
        ({"command_line": {"accumulate": "2.5"}}, ["ddp.accumulate='2.5'", "a whole number"]),
        ({"file": {"accumulate": 0}}, ["ddp.accumulate=0", "at least 1"]),
        ({"command_line": {"timeout": True}}, ["ddp.timeout=True"]),
        ({"command_line": {"timeout": "1e300"}}, ["ddp.timeout='1e300'", "at most 2e+06"]),
        ({"file": {"accumulate": 10**400}}, ["ddp.accumulate", "at most 100000"]),
        ({"file": {"workers": "9" * 5000}}, ["ddp.workers", "a whole number"]),
        *(({"file": {"workers": bad}}, ["a whole number"]) for bad in ("-1", "2.5", [2])),
        ({"command_line": {"mode": ["ddp"]}}, ["ddp.mode"]),
        ({"file": {"language_model": True}}, ["ddp.language_model=True: expected text"]),
        ({"file": {"comm": "powersgd"}}, ["'powersgd'", "bf16 | powersgd:N (default none)"]),
        ({"file": {"comm": "powersgd:0"}}, ["'powersgd:0'", "powersgd:N"]),
        ({"file": {"debug": "true:2"}}, ["'true:2'", "true | false"]),
        ({"file": {"kwargs": 5}}, ["ddp.kwargs=5", "ddp.kwargs.bucket_cap_mb=VALUE"]),
        (
            {"environment": {"kwargs": "bucket_cap_mb"}},
            ["ROBOMIMIC_DDP_KWARGS='{bucket_cap_mb: VALUE}'"],
        ),
        ({"environment": {"loader": "{a: [}"}}, ["ddp.loader.prefetch_factor=VALUE"]),
        ({"file": {"loader": {1: 2}}}, ["ddp.loader={1: 2}"]),
    ],
)
def test_bad_input_names_option_and_remedy(layer, words):
    with pytest.raises(OptionError) as caught:
        options.resolve(**layer)
    for word in words:
        assert word in str(caught.value)
    listed = [name for name in options.FIELDS if name in str(caught.value)]
    assert len(listed) < 5, "a message, not the list of options"


@pytest.mark.bad_input
def test_an_argument_of_torch_names_the_option_that_takes_it():
    for option, names in options.PASSED_ON.items():
        for name in names:
            with pytest.raises(OptionError, match=f"an option: use ddp.{option}.{name}."):
                options.resolve({name: 1})


def test_every_option_has_help_and_a_row_in_the_table():
    table = options_page.page()
    assert len(options.FIELDS) <= 28, "is there a right default? If not, raise the number"
    for name, field in options.FIELDS.items():
        assert field.metadata["help"].endswith(".")
        assert f"| `{name}` |" in table
    assert "`bf16`, powersgd:N |" in table and "`config`, `auto`, a whole number |" in table
