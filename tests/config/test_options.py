"""Options: precedence, types, and one clear error for what is unknown or bad."""

from __future__ import annotations

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
        ({"file": {"zzz": 1}}, ["ddp.zzz is not an option", "Options: mode"]),
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
    ],
)
def test_bad_input_names_option_and_remedy(layer, words):
    with pytest.raises(OptionError) as caught:
        options.resolve(**layer)
    for word in words:
        assert word in str(caught.value)


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


def test_every_option_has_help_and_a_row_in_the_table():
    table = options.markdown_table()
    for name, field in options.FIELDS.items():
        assert field.metadata["help"].endswith(".")
        assert f"| `{name}` |" in table
