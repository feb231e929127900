"""What is said of nets in an nn.ModuleDict that are left as they are."""

from __future__ import annotations

import pytest

from robomimic_ddp.patches.outcomes import AlreadyApplied, Unrecognised
from robomimic_ddp.patches.registry import all_fixers
from tests.fixers.cases import NETS, nets
from tests.fixers.support import IMPORT, check_untouched

EDITED = NETS + IMPORT


@pytest.mark.parametrize(
    ("name", "after"),
    [
        ("self.nets", "self.nets = nn.DataParallel(self.nets)\n"),
        ("made", "made['obs_encoder'] = nn.DataParallel(made['obs_encoder'])\n"),
    ],
    ids=["an attribute", "one"],
)
def test_data_parallel_around_nets_of_the_dict_is_left_to_the_user(name, after):
    text = NETS + nets("a", "b", name) + after
    outcome = check_untouched("nets_dict", text, Unrecognised)
    assert (outcome.where, "around nets" in outcome.why, outcome.blocks) == (4, True, True)


OTHER_NETS = """from diffusers.schedulers import DDPMScheduler
policy_nets = nn.ModuleDict({{"visual_encoder": {}, "noise_predictor": {}}})
nets = nn.ModuleDict({{"policy": policy_nets}})
"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("nets = nn.ModuleDict({'obs_encoder': a})\n", 3),
        ("nets = {'obs_encoder': a, 'noise_pred_net': b}\nnn.ModuleDict(nets)\n", 3),
        (OTHER_NETS.format("a", "b"), 4),
    ],
    ids=["one net missing", "made elsewhere", "other names"],
)
def test_names_nets_that_are_left_to_their_optimizers(text, line):
    outcome = check_untouched("nets_dict", NETS + text, Unrecognised)
    assert (outcome.where, outcome.blocks) == (line, False)
    assert "no nn.ModuleDict is written with the keys obs_encoder and noise_pred_" in outcome.why


def test_nets_of_other_names_that_the_user_has_wrapped():
    text = EDITED + OTHER_NETS.format("DDPUtils.parallel(a)", "DDPUtils.parallel(b)")
    assert all_fixers()["nets_dict"].may_apply_to(text.encode())
    outcome = check_untouched("nets_dict", text, AlreadyApplied)
    assert outcome.lines == (5,)
