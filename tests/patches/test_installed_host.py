"""The whole retrofit on a copy of the installed robomimic: exactly these lines, and no others."""

from __future__ import annotations

import difflib
import shutil
from pathlib import Path

import pytest

from robomimic_ddp.patches import engine, record, registry
from robomimic_ddp.patches.host import hosts
from robomimic_ddp.patches.outcomes import AlreadyApplied, NotPresent
from tests.hosts import Host
from tests.patches.support import snapshot

IMPORT = "import robomimic_ddp.api as DDPUtils"
ADDED = {
    "algo/cql.py": [
        IMPORT,
        'lr=DDPUtils.scale_lr(self.optim_params["actor"]["learning_rate"]["initial"]),',
        'lr=DDPUtils.scale_lr(self.optim_params["critic"]["learning_rate"]["initial"]),',
    ],
    "algo/diffusion_policy.py": [
        IMPORT,
        '"obs_encoder": DDPUtils.parallel(obs_encoder),',
        '"noise_pred_net": DDPUtils.parallel(noise_pred_net)',
    ],
    "algo/td3_bc.py": [
        IMPORT,
        "lam = self.algo_config.alpha / DDPUtils.over_ranks(Q_values.abs().mean().detach())",
    ],
    "scripts/train.py": [
        IMPORT,
        "@DDPUtils.distributed",
        "train_loader = DDPUtils.train_loader(",
        "valid_loader = DDPUtils.valid_loader(",
        "with DDPUtils.open_on_main(os.path.join(log_dir, '..', 'config.json'), 'w') as outfile:",
        'best_valid_loss = DDPUtils.restored("best_valid_loss", None)',
        'best_return = DDPUtils.restored("best_return", {k: -np.inf for k in envs} '
        "if config.experiment.rollout.enabled else None)",
        'best_success_rate = DDPUtils.restored("best_success_rate", {k: -1. for k in envs} '
        "if config.experiment.rollout.enabled else None)",
        "for epoch in DDPUtils.epochs(range(start_epoch, config.train.num_epochs + 1), model):",
        "DDPUtils.agree(time.time() - last_ckpt_time > config.experiment.save.every_n_seconds)",
        "DDPUtils.copyfile(latest_model_path, latest_model_backup_path)",
        "@DDPUtils.entry_point(api_version=1)",
        'config = DDPUtils.prepare_config(config_factory(ext_cfg["algo_name"]), ext_cfg)',
        "raise",
    ],
    "utils/diffusion_utils.py": [IMPORT, "ema = DDPUtils.averaged_copy("],
    "utils/file_utils.py": [
        IMPORT,
        "@DDPUtils.rlds_env_metadata",
        "@DDPUtils.rlds_shape_metadata",
    ],
    "utils/log_utils.py": [IMPORT, "@DDPUtils.print_logger", "@DDPUtils.data_logger"],
    "utils/torch_utils.py": [
        IMPORT,
        "device = DDPUtils.cuda_device()",
        'lr = DDPUtils.scale_lr(net_optim_params["learning_rate"]["initial"])',
    ],
    "utils/train_utils.py": [
        IMPORT,
        "@DDPUtils.run_directory",
        'ans = DDPUtils.ask("WARNING: model directory ({}) already exists! \\noverwrite? (y/n)\\n"'
        ".format(base_output_dir))",
        "@DDPUtils.rlds_datasets",
        "@DDPUtils.rollouts",
        "@DDPUtils.main_rank_only",
        "DDPUtils.save(params, ckpt_path)",
        "@DDPUtils.epoch_log",
    ],
}
REPLACED = {
    "algo/cql.py": 2,
    "algo/diffusion_policy.py": 2,
    "algo/td3_bc.py": 1,
    "scripts/train.py": 10,
    "utils/diffusion_utils.py": 1,
    "utils/file_utils.py": 0,
    "utils/log_utils.py": 0,
    "utils/torch_utils.py": 2,
    "utils/train_utils.py": 2,
}
"""How many of the host's lines are replaced; all others stay as they are."""
HEADS = ("---", "+++", "@@ ")
"""How lines of a diff begin that are of no file."""


@pytest.fixture
def edited(host_copy: Host, tmp_path: Path) -> Path:
    """The package folder of a copy of the edited host."""
    ignored = shutil.ignore_patterns("__pycache__")
    return shutil.copytree(host_copy.package, tmp_path / "robomimic", ignore=ignored)


def test_the_diff_is_these_lines_and_no_others_and_revert_takes_them_back(
    edited: Path, plain_host: Host
) -> None:
    before, after = snapshot(plain_host.package), snapshot(edited)
    added, replaced = {}, {}
    for name in (name for name in after if name.endswith(".py")):
        texts = [files.get(name, (b"", 0))[0].decode().splitlines() for files in (before, after)]
        lines = [line for line in difflib.unified_diff(*texts, n=0) if line[:3] not in HEADS]
        texts = ([line[1:].strip() for line in lines if line[0] == sign] for sign in "+-")
        new, old = (list(filter(None, text)) for text in texts)
        if new:
            added[name], replaced[name] = new, len(old)
    script = added.pop("scripts/train_rlds.py")
    assert "from robomimic_ddp.train_rlds import main" in script
    assert added == ADDED
    assert replaced == {**REPLACED, "scripts/train_rlds.py": 0}
    record.revert(hosts.find_host(str(edited)))
    assert snapshot(edited) == before


def test_applied_again_nothing_changes(edited: Path) -> None:
    second = engine.examine(hosts.find_host(str(edited)), registry.select())
    assert second.patches == ()
    assert second.state == "patched"
    found = [one.outcome for one in second.findings if not isinstance(one.outcome, NotPresent)]
    assert len(found) == 29 and all(isinstance(one, AlreadyApplied) for one in found)
