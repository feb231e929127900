"""diffusers' EMAModel in each of its constructors."""

from __future__ import annotations

import pytest

from tests.fixers.support import check_marked, check_untouched

HEAD = "from diffusers.training_utils import EMAModel\n"
OURS = "<<EMAModel|DDPUtils.averaged_copy>>"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "from mine import EMAModel\nema = EMAModel(model=nets)\n",
            "no EMAModel of diffusers is called",
        ),
        (
            HEAD + "class Mine(EMAModel):\n    pass\nema = Mine(model=nets)\n",
            "no EMAModel of diffusers is called",
        ),
        (HEAD + "ema = EMAModel(nets, power=0.75)\n", "line 2 works with any version"),
        (HEAD + "ema = EMAModel(*args)\n", "line 2 works with any version"),
        (
            HEAD
            + """try:
    ema = EMAModel(model=nets, power=0.75)
except TypeError:
    ema = EMAModel(parameters=nets.parameters(), power=0.75)
""",
            "line 3 works with any version",
        ),
    ],
    ids=["other", "subclass", "either version's", "unknown", "tries both"],
)
def test_leaves_averages_that_are_others_or_work_with_any_version(text, reason):
    assert reason in check_untouched("averaged_copy", text).reason


@pytest.mark.parametrize(
    "text",
    [
        f"{HEAD}@@\nema = {OURS}(model=nets, power=self.algo_config.ema.power)\n",
        f"{HEAD}@@\nema = {OURS}(parameters=nets.parameters(), power=0.75)\n",
        f"from diffusers import EMAModel\n@@\nema = {OURS}(nets.parameters(), power=0.75)\n",
        f"""import copy

{HEAD}@@

def _create_ema(model, power):
    ema = {OURS}(parameters=model.parameters(), power=power)
    return ema, copy.deepcopy(model)
""",
        f"""{HEAD}@@
if old:
    ema = {OURS}(model=nets)
else:
    ema = {OURS}(parameters=nets.parameters())
""",
    ],
    ids=[
        *("model=", "parameters=", "by position"),
        *("a helper that returns both", "two branches are two averages"),
    ],
)
def test_each_form(text):
    check_marked("averaged_copy", text)
