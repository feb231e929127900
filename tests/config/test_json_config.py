"""What a host's JSON config may say."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

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


@pytest.mark.parametrize(
    ("name", "text", "refused"),
    [
        ("cfg.yaml", "algo_name: bc  # or another\n", None),
        ("cfg.json5", "{algo_name: 'bc',}", None),
        ("cfg.jsonc", "// of the lab\n{}", None),
        ("cfg", "algo_name: bc\n", None),
        ("of_a_registry", None, None),
        ("gone.yaml", None, "gone.yaml: no such file"),
        ("cfg.json", "algo_name: bc\n", "could not be read as JSON"),
        ("CFG.JSON", "{}", "found no algo_name"),
    ],
)
def test_a_config_that_is_no_json_file_is_read_by_its_host_alone(name, text, refused, tmp_path):
    if text is not None:
        (tmp_path / name).write_text(text)
    arguments = SimpleNamespace(config=str(tmp_path / name), algo="none of them")
    with pytest.raises(ConfigError, match=refused) if refused else nullcontext():
        json_config.require_config(arguments, lambda: None)
