"""What a host's JSON config may say."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
from omegaconf import OmegaConf

from robomimic_ddp.config.host import json_config
from robomimic_ddp.errors import ConfigError

pytestmark = pytest.mark.bad_input


@pytest.mark.parametrize(
    ("text", "is_computed"),
    [
        ("${oc.env:SECRET}", True),
        ("${${name}:SECRET}", True),
        ("${oc.${part}:SECRET}", True),
        ("${oc.${${${to_part}}}:SECRET}", True),
        ("of ${name}: ${part}", False),
        ("${${to_part}}", False),
        ("a: {b} $", False),
    ],
)
def test_a_file_copies_nothing_of_the_environment(text, is_computed, monkeypatch):
    monkeypatch.setenv("SECRET", "found")
    settings = {"name": "oc.env", "part": "env", "to_part": "part", "value": text}
    expected = pytest.raises(ConfigError, match="computed from this") if is_computed else None
    with expected or nullcontext():
        json_config.refuse_resolvers(settings, "config.json")
    assert is_computed or "found" not in OmegaConf.create(settings).value
