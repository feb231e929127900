"""The two nets as bare values of an nn.ModuleDict (ARISE lineage)."""

from __future__ import annotations

import pytest

from robomimic_ddp.patches.outcomes import AlreadyApplied, Unrecognised
from robomimic_ddp.patches.registry import all_fixers
from tests.fixers.support import IMPORT, check_edit, check_marked, check_untouched

HEAD = "import torch\nimport torch.nn as nn\n"
EDITED = HEAD + IMPORT


def parallel(net: str) -> str:
    return f"<<{net}|DDPUtils.parallel({net})>>"


A, B, C, D = map(parallel, "abcd")


@pytest.mark.parametrize(
    ("head", "form", "reason"),
    [
        (HEAD, "nn.DataParallel({})", "see data_parallel"),
        (EDITED, "DDPUtils.parallel({}, module_key=True)", ""),
    ],
    ids=["plain", "edited"],
)
def test_nets_in_data_parallel_are_left_to_their_fixer(head, form, reason):
    a, b = form.format("a"), form.format("b")
    text = f"{head}nets = nn.ModuleDict({{'obs_encoder': {a}, 'noise_pred_net': {b}}})\n"
    assert reason in check_untouched("nets_dict", text).reason


@pytest.mark.parametrize(
    "text",
    [
        f"""
nets = nn.ModuleDict({{
    "policy": nn.ModuleDict({{
        "obs_encoder": {parallel("obs_encoder")},  # encoder
        "noise_pred_net": {parallel("make_net(1, 2)")}
    }})
}})
""",
        f"""
if big:
    n = nn.ModuleDict(dict(obs_encoder={A}, noise_pred_net={B}))
else:
    n = nn.ModuleDict(dict(obs_encoder={C}, noise_pred_net={D}))
""",
        f"nets = torch.nn.ModuleDict({{'obs_encoder': {A}, 'noise_pred_net': {B}}})\n",
        f"nets = nn.ModuleDict({{'obs_encoder': {A} if big else {C}, 'noise_pred_net': {B}}})\n",
        f"nets = nn.ModuleDict({{'obs_encoder': {A}, 'noise_pred_net': {B}, 'encoder': {C}}})\n",
        f"nets = nn.ModuleDict({{'obs_encoder': nn.DataParallel(a), 'noise_pred_net': {B}}})\n",
    ],
    ids=[
        *("inner dict", "both branches", "torch.nn", "conditional", "a further net"),
        "one in DataParallel",
    ],
)
def test_shapes(text):
    check_marked("nets_dict", f"{HEAD}@@\n{text}")


MAKE = "{} = nn.ModuleDict({{'obs_encoder': {}, 'noise_pred_net': {}}})\n"


@pytest.mark.parametrize("form", ["nn.DataParallel({})", "DDPUtils.parallel({}, module_key=True)"])
@pytest.mark.parametrize(
    ("before", "value"),
    [
        ("a = {a}\n", "a"),
        ("a, c = {a}, c\n", "a"),
        ("wrap = lambda net: {net}\n", "wrap(a)"),
        ("def put(net):\n    return {net}\n", "self.put(a)"),
    ],
    ids=["a variable", "two at once", "a lambda", "a function"],
)
def test_a_net_that_went_through_data_parallel_before(form, before, value):
    """Else one parallel net would wrap the other."""
    head = EDITED if "DDPUtils" in form else HEAD
    lines = before.format(a=form.format("a"), net=form.format("net"))
    check_edit(
        "nets_dict",
        head + lines + MAKE.format("nets", value, "b"),
        EDITED + lines + MAKE.format("nets", value, "DDPUtils.parallel(b)"),
    )


def test_data_parallel_of_other_nets_does_not_matter():
    critic = "critic = nn.DataParallel(critic)\n"
    check_marked("nets_dict", f"{HEAD}@@\n{critic}" + MAKE.format("nets", A, B))


@pytest.mark.parametrize(
    ("name", "after"),
    [
        ("self.nets", "self.nets = nn.DataParallel(self.nets)\n"),
        ("made", "made['obs_encoder'] = nn.DataParallel(made['obs_encoder'])\n"),
    ],
    ids=["an attribute", "one"],
)
def test_data_parallel_around_nets_of_the_dict_is_left_to_the_user(name, after):
    text = HEAD + MAKE.format(name, "a", "b") + after
    outcome = check_untouched("nets_dict", text, Unrecognised)
    assert (outcome.where, "around nets" in outcome.why, outcome.blocks) == (4, True, True)


@pytest.mark.parametrize(
    ("text", "line", "word"),
    [
        ("nets = nn.ModuleDict({'obs_encoder': a})\n", 3, "noise_pred_net"),
        (
            "nets = {'obs_encoder': a, 'noise_pred_net': b}\nnn.ModuleDict(nets)\n",
            3,
            "nn.ModuleDict",
        ),
    ],
    ids=["one net missing", "made elsewhere"],
)
def test_names_nets_that_are_left_to_their_optimizers(text, line, word):
    outcome = check_untouched("nets_dict", HEAD + text, Unrecognised)
    assert (outcome.where, outcome.blocks) == (line, False)
    assert word in outcome.why and "synchronised by their optimizers" in outcome.why


OTHER_NETS = """from diffusers.schedulers import DDPMScheduler
policy_nets = nn.ModuleDict({{"visual_encoder": {}, "noise_predictor": {}}})
nets = nn.ModuleDict({{"policy": policy_nets}})
"""


def test_nets_of_other_names_are_named_and_block_nothing():
    outcome = check_untouched("nets_dict", HEAD + OTHER_NETS.format("a", "b"), Unrecognised)
    assert not outcome.blocks
    assert "keys of nn.ModuleDict are visual_encoder, noise_predictor, policy" in outcome.why
    assert "expected obs_encoder and noise_pred_net" in outcome.why


def test_nets_of_other_names_that_the_user_has_wrapped():
    text = EDITED + OTHER_NETS.format("DDPUtils.parallel(a)", "DDPUtils.parallel(b)")
    assert all_fixers()["nets_dict"].may_apply_to(text.encode())
    outcome = check_untouched("nets_dict", text, AlreadyApplied)
    assert outcome.lines == (5,)


ASSIGNED_NETS = """class Policy:
    def _create_networks(self):
        self.nets = nn.ModuleDict()
        self.nets["visual_encoder"] = nn.ModuleDict()
        self.nets["noise_predictor"] = {}
"""


def test_nets_put_into_an_empty_dict_are_named_and_may_be_wrapped_by_hand():
    outcome = check_untouched("nets_dict", HEAD + ASSIGNED_NETS.format("net"), Unrecognised)
    assert not outcome.blocks
    assert "keys of nn.ModuleDict are visual_encoder, noise_predictor;" in outcome.why
    wrapped = EDITED + ASSIGNED_NETS.format("DDPUtils.parallel(net)")
    check_untouched("nets_dict", wrapped, AlreadyApplied)


def test_algorithms_without_diffusion_have_no_such_nets():
    text = EDITED + "nets = nn.ModuleDict({'policy': make()})\n"
    check_untouched("nets_dict", text)
