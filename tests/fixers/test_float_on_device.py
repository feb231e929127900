"""The order of to_float and to_device in process_batch_for_training."""

from __future__ import annotations

import pytest

from tests.fixers.support import IMPORT, check_edit, check_untouched

HEAD = "import robomimic.utils.tensor_utils as TensorUtils\n"
NET = 'NET = "noise_pred_net"\n'


def method(line: str, name: str = "process_batch_for_training") -> str:
    return f"{NET}\n\nclass Policy:\n    def {name}(self, batch):\n        {line}\n"


CONVERTED_FIRST = "return TensorUtils.to_device(TensorUtils.to_float(batch), self.device)"
MOVED_FIRST = "return TensorUtils.to_float(TensorUtils.to_device(batch, self.device))"


@pytest.mark.parametrize(
    "text",
    [
        HEAD + method(CONVERTED_FIRST, "get_action"),
        "import elsewhere as TensorUtils\n" + method(CONVERTED_FIRST),
        HEAD + method("return TensorUtils.to_device(to_float(batch), self.device)"),
        HEAD + method("return TensorUtils.to_device(*TensorUtils.to_float(batch))"),
        HEAD + method("return TensorUtils.to_device(batch, TensorUtils.to_float(self.device))"),
        HEAD + method("return TensorUtils.to_device(batch, self.device)"),
    ],
)
def test_leaves_other_conversions(text):
    check_untouched("float_on_device", text)


def test_leaves_a_host_that_moves_first_by_itself():
    outcome = check_untouched("float_on_device", HEAD + method(MOVED_FIRST))
    assert outcome.reason == "the host moves a batch before it converts it"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (CONVERTED_FIRST, MOVED_FIRST),
        (
            "batch = (TensorUtils.to_device(x=TensorUtils.to_float(x=f(batch)), device=d))",
            "batch = (TensorUtils.to_float(x=TensorUtils.to_device(x=f(batch), device=d)))",
        ),
        (
            "return TensorUtils.to_device(\n            TensorUtils.to_float(batch),  # here\n"
            "            self.device,\n        )",
            "return TensorUtils.to_float(TensorUtils.to_device(\n            batch,  # here\n"
            "            self.device,\n        ))",
        ),
    ],
)
def test_the_move_comes_first(before, after):
    check_edit("float_on_device", HEAD + method(before), HEAD + IMPORT + method(after))


def test_names_imported_one_by_one():
    head = "from robomimic.utils.tensor_utils import to_device, to_float as as_float\n"
    check_edit(
        "float_on_device",
        head + method("return to_device(as_float(batch), d)") + "# to_float(\n",
        head + IMPORT + method("return as_float(to_device(batch, d))") + "# to_float(\n",
    )
