"""The whole retrofit on a copy of the installed robomimic: exactly these lines, and no others."""

from __future__ import annotations

import pytest

from robomimic_ddp.patches import engine, record, registry
from robomimic_ddp.patches.host import hosts
from robomimic_ddp.patches.outcomes import AlreadyApplied, NotPresent
from robomimic_ddp.patches.report import unified_diff
from tests.hosts import copy_host
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


@pytest.fixture(scope="module")
def retrofit(tmp_path_factory: pytest.TempPathFactory):
    """(host, examination, files before, diff), with the host patched."""
    copy = copy_host(tmp_path_factory.mktemp("installed"), small=False)
    host = hosts.find_host(str(copy.folder))
    examination = engine.examine(host, registry.select())
    before, diff = snapshot(copy.package), unified_diff(examination)
    record.apply(examination)
    return host, examination, before, diff


def test_the_diff_is_these_lines_and_no_others(retrofit):
    added, replaced, name = {}, {}, ""
    for line in retrofit[3].decode().splitlines():
        if line.startswith("+++ "):
            name = line.partition("robomimic/")[2]
        elif line.startswith("+"):
            added.setdefault(name, []).append(line[1:].strip())
        elif line.startswith("-") and not line.startswith("--- "):
            replaced[name] = replaced.get(name, 0) + 1
    script = added.pop("scripts/train_rlds.py")
    assert "from robomimic_ddp.train_rlds import main" in script
    assert added == ADDED
    assert replaced == {name: count for name, count in REPLACED.items() if count}


def test_applied_again_nothing_changes(retrofit):
    host, first = retrofit[:2]
    second = engine.examine(host, registry.select())
    assert second.patches == ()
    assert second.state == "patched"
    done = [finding for finding in second.findings if isinstance(finding.outcome, AlreadyApplied)]
    edited = [one for one in first.findings if not isinstance(one.outcome, NotPresent)]
    assert len(done) == sum(len(finding.outcome.lines) > 0 for finding in edited) == 29


def test_revert_gives_back_every_byte_and_mode(retrofit):
    host, _, before, _ = retrofit
    record.revert(host)
    assert snapshot(host.package) == before
