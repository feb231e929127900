"""Hosts put together from the shapes that real codebases have, in our own words.

Each seam of which several fixers see a part has a table of its shapes by name. `build` takes one
shape of each; any combination is a host that can be patched. tests/fixers has the shapes that one
fixer alone looks at.
"""

from __future__ import annotations

from pathlib import Path

_DP = "torch.nn.parallel.DataParallel"
_IDS = "device_ids=list(range(0,torch.cuda.device_count()))"

NETS = {
    "bare in a ModuleDict": """        nets = nn.ModuleDict({
            "policy": nn.ModuleDict({
                "obs_encoder": obs_encoder,
                "noise_pred_net": noise_pred_net,
            })
        })
""",
    "DataParallel in nested ModuleDicts": f"""        nets = nn.ModuleDict({{
            'policy': nn.ModuleDict({{
                'obs_encoder': {_DP}(obs_encoder, {_IDS}),
                'noise_pred_net': {_DP}(noise_pred_net, {_IDS})
            }})
        }})
""",
    "DataParallel broken over lines by a formatter": f"""        nets = nn.ModuleDict(
            {{
                "obs_encoder": {_DP}(
                    obs_encoder,
                    device_ids=list(range(0, torch.cuda.device_count())),
                ),
                "noise_pred_net": {_DP}(
                    noise_pred_net,
                    device_ids=list(range(0, torch.cuda.device_count())),
                ),
            }}
        )
""",
    "DataParallel in one branch, bare in the other": f"""        if self.several:
            nets = nn.ModuleDict(dict(
                obs_encoder={_DP}(obs_encoder), noise_pred_net={_DP}(noise_pred_net)))
        else:
            nets = nn.ModuleDict(dict(obs_encoder=obs_encoder, noise_pred_net=noise_pred_net))
""",
    "DataParallel in assignments before": """        obs_encoder = nn.DataParallel(obs_encoder)
        if self.big:
            noise_pred_net = nn.DataParallel(noise_pred_net)
        nets = nn.ModuleDict({"obs_encoder": obs_encoder, "noise_pred_net": noise_pred_net})
""",
}
LANGUAGE = {
    "none": "",
    "DistilBERT at import": """from transformers import AutoTokenizer, AutoModel
tokenizer = AutoTokenizer.from_pretrained('distilbert-base-uncased')
lang_model = AutoModel.from_pretrained("distilbert-base-uncased", torch_dtype=torch.float16)
lang_model.to('cuda')
""",
}
LOADER = {
    "top level": """    train_sampler = trainset.get_dataset_sampler()
    train_loader = DataLoader(
        dataset=trainset,
        sampler=train_sampler,
        batch_size=config.train.batch_size,
        shuffle=(train_sampler is None),
        drop_last=True
    )
""",
    "branches, one of them RLDS": """    if rlds:
        train_loader = DataLoader(pytorch_dataset, batch_size=8, num_workers=0)
    else:
        train_sampler = trainset.get_dataset_sampler()
        train_loader = DataLoader(dataset=trainset, sampler=train_sampler, pin_memory=True)
""",
    "comprehension": "    train_loader = {k: DataLoader(d) for k, d in trainsets.items()}\n",
    "two at a time": """    train_loader, second = DataLoader(trainset), DataLoader(trainset_2)
""",
    "with validation": """    train_loader = DataLoader(dataset=trainset)
    if validset is not None:
        valid_loader = DataLoader(dataset=validset, shuffle=False)
""",
}
SAVES = {
    "none": "",
    "config.json": """    with open(os.path.join(log_dir, '..', 'config.json'), 'w') as outfile:
        json.dump(config, outfile)
""",
    "copies and removals": """    shutil.copyfile(last, last_bak)
    shutil.rmtree(old)
    os.remove(video_paths["a"])
""",
    "by the clock, if the config says so": """    check = config.every is not None and \\
        (time.time() - last_ckpt_time > config.every)
""",
    "by the clock": """    check = (every is not None) and (time.time() - last_ckpt_time > every)
""",
}
OWN_RLDS_ENTRY = {
    "none": "",
    "composes a YAML": """from omegaconf import OmegaConf


def run(cfg):
    load_from = OmegaConf.select(cfg, "load_from")
    if load_from:
        with open(load_from) as f:
            cfg = OmegaConf.create(json.load(f))
    settings = OmegaConf.to_container(cfg)
    config = config_factory(settings["algo_name"])


def main():
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    GlobalHydra.instance().clear()
    with initialize_config_dir(config_dir="train_configs"):
        run(compose(config_name="train_rlds", overrides=list(sys.argv[1:])))
""",
}
SECOND_SCRIPT = {
    "none": "",
    "a second train()": """from torch.utils.data import DataLoader


def train(config, device):
    train_loader = DataLoader(trainset)
    for epoch in range(3):
        TrainUtils.run_epoch(model, train_loader)


def main(args):
    config = config_factory(args["algo_name"])
""",
}
SEAMS = {
    "nets": NETS,
    "language": LANGUAGE,
    "loader": LOADER,
    "saves": SAVES,
    "rlds_entry": OWN_RLDS_ENTRY,
    "second_script": SECOND_SCRIPT,
}
FIRST = {seam: next(iter(shapes)) for seam, shapes in SEAMS.items()}

_ALGO = """import torch
import torch.nn as nn
from diffusers.training_utils import EMAModel
{language}
import robomimic.utils.tensor_utils as TensorUtils


class DiffusionPolicyUNet:
    def _create_networks(self):
{nets}        nets = nets.float().to(self.device)
        ema = EMAModel(model=nets, power=0.75)

    def process_batch_for_training(self, batch):
        return TensorUtils.to_device(TensorUtils.to_float(batch), self.device)

    def get_action(self, batch):
        return self.nets['policy']['noise_pred_net'].module(batch)
"""
_TRAIN = '''"""A train script."""
import json, os, shutil, sys, time, traceback

from torch.utils.data import DataLoader

import robomimic.utils.train_utils as TrainUtils
from robomimic.config import config_factory


def train(config, device, resume=False):
    last_ckpt_time = time.time()
{loader}{saves}    best_valid_loss = None
    for epoch in range(1, config.train.num_epochs + 1):  # epoch numbers start at 1
        step_log, data_iter = TrainUtils.run_epoch(
            model=model, data_loader=train_loader, epoch=epoch, data_loader_iter=data_iter)


def main(args):
    ext_cfg = json.load(open(args.config, 'r'))
    config = config_factory(ext_cfg["algo_name"])
    try:
        train(config, device=None)
    except Exception as e:
        res_str = "run failed with error:\\n{{}}\\n\\n{{}}".format(e, traceback.format_exc())
    print(res_str)


if __name__ == "__main__":
    main(None)
'''
_UTILS = """import torch
import robomimic.utils.log_utils as LogUtils


def get_exp_dir(config, auto_remove_exp_dir=False):
    if os.path.exists(base):
        answer = input("overwrite? ")
    return log_dir, output_dir, video_dir


def run_epoch(model, data_loader, epoch, num_steps=None):
    return step_log_all


def save_model(model, ckpt_path):
    torch.save(model, ckpt_path)
"""
_TORCH = """import torch


def get_torch_device(try_to_use_cuda):
    return torch.device("cuda:0")


def optimizer_from_optim_params(params, net):
    return params["learning_rate"]["initial"]
"""


def build(root: Path, chosen: dict[str, str], package: str = "robomimic") -> Path:
    """Writes the host of the `chosen` shapes (seam -> shape; the others are the first ones).
    Returns its package folder.
    """
    names = {**FIRST, **chosen}
    text = {seam: shapes[names[seam]] for seam, shapes in SEAMS.items()}
    files = {
        "__init__.py": "",
        "algo/__init__.py": "",
        "algo/diffusion_policy.py": _ALGO.format(**text),
        "utils/__init__.py": "",
        "utils/train_utils.py": _UTILS,
        "utils/torch_utils.py": _TORCH,
        "scripts/train.py": _TRAIN.format(**text),
        "scripts/train_rlds.py": text["rlds_entry"],
        "scripts/train_second.py": text["second_script"],
    }
    for name, content in files.items():
        if content or name.endswith("__init__.py"):
            path = root / package / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
    return root / package
