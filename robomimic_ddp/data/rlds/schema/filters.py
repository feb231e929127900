"""Whether an episode passes a schema's filter."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from robomimic_ddp.data.rlds.schema.fields import OF_EPISODE
from robomimic_ddp.data.rlds.schema.spec import Filter


def passes(one: Filter, episode: Mapping[str, Any]) -> bool:
    """Of a step feature the last step counts; without steps: False."""
    value = episode[one.feature]
    if not one.feature.startswith(OF_EPISODE):
        if not len(value):
            return False
        value = value[-1]
    if not isinstance(value, bytes):
        return float(value) == float(one.value)
    text = value.decode("utf-8", "replace")
    if one.test == "equals":
        return text == one.value
    if one.test == "contains":
        return one.value in text
    return re.fullmatch(one.value, text) is not None
