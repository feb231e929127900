"""Whether an episode passes a schema's filter, inside a tf.data graph."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from robomimic_ddp.data.rlds.schema.fields import OF_EPISODE
from robomimic_ddp.data.rlds.schema.spec import Filter
from robomimic_ddp.data.rlds.tf_import import import_tensorflow
from robomimic_ddp.errors import ConfigError


def passes(one: Filter, episode: Mapping[str, Any]) -> Any:
    """TensorFlow: bool scalar. Of a step feature the last step counts; without steps: False."""
    tf = import_tensorflow()
    value = episode[one.feature]
    if not one.feature.startswith(OF_EPISODE):
        some = tf.shape(value)[0] > 0
        padding = tf.zeros([1], value.dtype) if value.dtype != tf.string else tf.constant([""])
        value = tf.concat([padding, value], 0)[-1]
        return tf.logical_and(some, _passes(one, value))
    return _passes(one, value)


def require_patterns(filters: Iterable[Filter | None]) -> None:
    """Raises ConfigError for a pattern that TensorFlow does not support."""
    tf = import_tensorflow()
    for one in filters:
        if one is None or one.test != "matches":
            continue
        try:
            tf.strings.regex_full_match("", one.value)
        except tf.errors.InvalidArgumentError as error:
            raise ConfigError(
                f"the filter `{one}` of the schema: TensorFlow's regular expressions (RE2) do not "
                f"take this pattern: {str(error).splitlines()[0]}. They have no look-ahead, no "
                "look-behind and no back-references: write it without, or use `contains`."
            ) from error


def _passes(one: Filter, value: Any) -> Any:
    tf = import_tensorflow()
    if one.test == "equals":
        if isinstance(one.value, str):
            return tf.equal(value, one.value)
        return tf.equal(tf.cast(value, tf.float64), float(one.value))
    pattern = one.value if one.test == "matches" else f"(?s).*{re.escape(one.value)}.*"
    return tf.strings.regex_full_match(value, pattern)
