"""Tell whether an episode passes a schema's filter."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from robomimic_ddp.data.rlds.schema.fields import OF_EPISODE
from robomimic_ddp.data.rlds.schema.spec import Filter


def passes(condition: Filter, episode: Mapping[str, Any]) -> bool:
    """Return whether an episode passes. A feature of steps counts at the last; False without."""
    value = episode[condition.feature]
    if not condition.feature.startswith(OF_EPISODE):
        if not len(value):
            return False
        value = value[-1]
    if not isinstance(value, bytes):
        return float(value) == float(condition.value)
    text = value.decode("utf-8", "replace")
    if condition.test == "equals":
        return text == condition.value
    if condition.test == "contains":
        return condition.value in text
    return re.fullmatch(condition.value, text) is not None
