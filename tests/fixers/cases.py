"""Source texts for the fixers, by fixer: what each edits, leaves, and does not recognise.

In EDITS each change is written as <<before|after>>, and our import as the line @@.
"""

from __future__ import annotations

from tests.fixers.support import IMPORT

TRAIN = "def train(config, device):\n"
SAVE = "def save_model(model, ckpt_path):\n"
RATES = "def optimizer_from_optim_params(net_optim_params, net):\n"
TRANSFORMERS = "from transformers import AutoModel\n"
LOADER = "from torch.utils.data import DataLoader\n"
OCTO = "from octo.data.dataset import make_interleaved_dataset\n"
JSON = "import json\nfrom omegaconf import OmegaConf\n"
LOOP = "    for epoch in range(2):\n        run_epoch(model, epoch)\n"
LAUNCHER = "from isaaclab.app import AppLauncher\n"
UTILS = "import h5py\nimport shutil\nimport robomimic.utils.train_utils as TrainUtils\n"
MAIN = "def main(args):\n"
FACTORY = "from robomimic.config import config_factory\n"
MADE = 'config_factory(j["algo_name"])'
ADD_KEYS = (
    "    with config.unlocked():\n        config.update(j)\n",
    "    config.unlock()\n    config.update(j)\n",
    "    config.unlock()\n    with config.values_unlocked():\n        config.update(j)\n",
)
KEEP_KEYS = (
    "    with config.values_unlocked():\n        config.update(j)\n",
    "    config.unlock()\n    config.lock_keys()\n    config.update(j)\n",
    "    with config.unlocked():\n        config.update(other)\n    config.update(j)\n",
    "    config.update(j)\n    if args.debug:\n        config.unlock()\n",
)
DIRECTORY = "    log_dir, *_ = TrainUtils.get_exp_dir(config)\n"
SCALE = "    config.train.data = scale(config, log_dir)\n"
CLOCK = f"import datetime, time, timeit\n@@\n{TRAIN}    last = time.time()\n"
TIMED = CLOCK.replace("@@\n", "")
DEVICES = "device_ids=list(range(0,torch.cuda.device_count()))"
PARALLEL = "DDPUtils.parallel(net, module_key=True)"
NETS = "import torch\nimport torch.nn as nn\n"
AVERAGE = "from diffusers.training_utils import EMAModel\n"
OURS = "<<EMAModel|DDPUtils.averaged_copy>>"
UNET = "import robomimic.models.diffusion_policy_nets as DPNets\n"
POLICY = "class Policy(PolicyAlgo):\n    def _create_networks(self):\n        self.algo_config\n"
SIZES = [
    f"{name}=self.algo_config.unet.{name}"
    for name in ("diffusion_step_embed_dim", "down_dims", "kernel_size", "n_groups")
]
MAIN_PATCHED = f"{IMPORT}\n\n@DDPUtils.entry_point(api_version=1)\n{MAIN}"


def writer(line: str) -> str:
    return f"def scale(config, log_dir):\n    {line}\n\n\n"


def device(made: str) -> str:
    return f"""import torch
@@

def get_torch_device(try_to_use_cuda):
    if try_to_use_cuda and torch.cuda.is_available():
        device = {made}
    else:
        device = torch.device("cpu")
    return device
"""


def nets(encoder: str, net: str, name: str = "nets") -> str:
    return f"{name} = nn.ModuleDict({{'obs_encoder': {encoder}, 'noise_pred_net': {net}}})\n"


def parallel(net: str) -> str:
    return f"<<{net}|DDPUtils.parallel({net})>>"


A, B, C, D = map(parallel, "abcd")


def way_around(value: str) -> str:
    return f"    try:\n        commit = {value}\n    except Exception:\n        commit = None\n"


AROUND = "".join(
    map(
        way_around,
        (
            'git.Repo(".").head.commit.hexsha',
            'setproctitle.setproctitle("robomimic")',
            "setup_logging()",
            "TrainUtils.get_exp_dir(args)",
        ),
    )
)


def failing(kind: str = " Exception as e", last: str = "") -> str:
    """The end of a main() whose handler keeps the error; `last`: the handler's last line."""
    return f"""    message = "finished run successfully!"
    try:
        train(config, device=device)
    except{kind}:
        message = "run failed with error:\\n{{}}".format(traceback.format_exc())  # shown below
{last}    print(message)
"""


EDITS = {
    "ask": [
        """import os
@@

def get_exp_dir(config):
    if os.path.exists(base):
        ans = <<input|DDPUtils.ask>>("overwrite {}? (y/n)\\n".format(base))
"""
    ],
    "atomic_save": [
        f"from torch import save\n@@\n{SAVE}    <<save|DDPUtils.save>>(params, ckpt_path)\n",
        """import torch
@@
def _safe_save(params, path):
    for attempt in range(3):
        <<torch.save|DDPUtils.save>>(params, path)
def other(x):
    torch.save(x, "x")
def save_model(model, ckpt_path):
    _safe_save(params={"model": model}, path=ckpt_path)
""",
    ],
    "clock_decision": [
        f"{CLOCK}    {body}\n"
        for body in (
            # The checkpoint every n seconds.
            """if config.save.enabled:
        time_check = (config.save.every_n_seconds is not None) and \\
            <<|DDPUtils.agree>>(time.time() - last > config.save.every_n_seconds)
        epoch_check = epoch % 2 == 0""",
            *(  # What is more than configuration is agreed on, too.
                f"check = <<|DDPUtils.agree(>>{first} and (time.time() - last > config.n)<<|)>>"
                for first in ("every", "not should_save", "config.enabled and due", "f(config)")
            ),
            *(
                f"if <<|DDPUtils.agree(>>{clock}() > end<<|)>>:\n        pass"
                for clock in ("timeit.default_timer", "time.process_time", "datetime.datetime.now")
            ),
            "if a:\n        f\n    elif <<|DDPUtils.agree(>>not time.time() < t<<|)>>:\n        g",
            "while <<|DDPUtils.agree(>>time.monotonic() < limit<<|)>>:\n        pass",
            "if config.a and(<<|DDPUtils.agree(>>time.time() - last > limit<<|)>>):\n        pass",
            "spent = time.time() - last\n    due = <<|DDPUtils.agree(>>spent > limit<<|)>>",
            "spent += time.time() - last\n    if <<|DDPUtils.agree(>>spent > 9<<|)>>:\n        f",
            "spent: float = time.time() - last\n"
            "    due: bool = <<|DDPUtils.agree(>>spent > limit<<|)>>",
            "spent = time.time() - last\n    total += spent\n    hours = round(total) / 3600\n"
            "    if <<|DDPUtils.agree(>>hours >= limit<<|)>>:\n        f",
            "spent = datetime.datetime.utcnow() - begun\n    hours = spent.total_seconds() / 3600\n"
            "    if <<|DDPUtils.agree(>>hours > limit<<|)>>:\n        f",
            "late = <<|DDPUtils.agree(>>time.time() > end<<|)>>\n    if late == True:\n        f",
        )
    ],
    "copyfile": [
        "from shutil import copyfile as cp\n"
        f"@@\n{TRAIN}    <<cp|DDPUtils.copyfile>>(latest_path, backup_path)  # keep\n",
        *(
            f"import os\nimport shutil\n@@\n{TRAIN}    if os.path.exists(a):\n"
            f"        <<{name}|DDPUtils.main_rank_only({name})>>(a)  # results\n"
            for name in ("shutil.copytree", "os.remove", "os.makedirs", "os.symlink")
        ),
        *(
            f"import os\nfrom pathlib import Path\n@@\n{TRAIN}    if not os.path.exists(a):\n"
            f"        <<{name}|DDPUtils.main_rank_only({name})>>({arguments})\n"
            for name, arguments in (
                ("os.makedirs", "a, 0o755, exist_ok=False"),
                ("Path(a).mkdir", "parents=True"),
                ('(Path(a) / "plots").mkdir', ""),
            )
        ),
    ],
    "cuda_device": [
        device(f"<<torch.device({name})|DDPUtils.cuda_device()>>")
        for name in ("'cuda'", '"cuda:1"')
    ],
    "data_parallel": [
        *(
            f"{imports}@@\nnet = <<{name}(net, {DEVICES})|{PARALLEL}>>\n"
            for imports, name in (
                ("from torch import nn\n", "nn.DataParallel"),
                ("from torch.nn.parallel import DataParallel as DP\n", "DP"),
                ("import torch.nn.parallel.data_parallel as P\n", "P.DataParallel"),
            )
        ),
        *(
            f"import torch\n@@\nnet = <<torch.nn.DataParallel{call}|{made}>>\n"
            for call, made in (
                ("(device_ids=[0, 1], module=net)", PARALLEL),
                ("(net, [0, 1])", PARALLEL),
                ("(net).cuda()", f"{PARALLEL}.cuda()"),
                (
                    "(make(a, b), dim=0) if several else net",
                    "DDPUtils.parallel(make(a, b), module_key=True) if several else net",
                ),
                (
                    "(torch.nn.DataParallel(net))",
                    f"DDPUtils.parallel({PARALLEL}, module_key=True)",
                ),
            )
        ),
        # Nested ModuleDicts.
        f"""{NETS}@@

nets = nn.ModuleDict({{
    'policy': nn.ModuleDict({{
        'obs_encoder': <<torch.nn.parallel.DataParallel(net, {DEVICES})|{PARALLEL}>>,   # comment
        'noise_pred_net': <<torch.nn.parallel.DataParallel(net, {DEVICES})|{PARALLEL}>>
    }})
}})
nets = nets.float().to(device)
""",
        # Broken over lines by a formatter.
        """import torch
@@

nets = {
    "obs_encoder": <<torch.nn.parallel.DataParallel|DDPUtils.parallel>>(
        obs_encoder,
        <<device_ids=list(range(0, torch.cuda.device_count()))|module_key=True>>,
    ),
}
""",
        # Half edited before.
        f"""import torch
{IMPORT}a = DDPUtils.parallel(a, module_key=True)
b = <<torch.nn.DataParallel(b)|DDPUtils.parallel(b, module_key=True)>>
""",
    ],
    "distributed": [
        f"import os\n@@\n\n<<|@DDPUtils.distributed\n>>def train({signature}):\n    pass\n"
        for signature in (
            "config, device, resume=False",
            "config, device, *, auto=True",
        )
    ],
    "epochs": [
        f"""import robomimic.utils.train_utils as TrainUtils
@@
{TRAIN}    for k in keys:
        print(k)
    for epoch in <<{over}|DDPUtils.epochs({over}, {model})>>:  # from 1
        step_log, data_iterator = {call}
        for k in step_log:
            log(k)
        TrainUtils.run_epoch(model={model}, validate=True)
"""
        for over, call, model in (
            (
                "range(1, config.train.num_epochs + 1)",
                "TrainUtils.run_epoch(model=model, x=1)",
                "model",
            ),
            ("range(start, n)", "run_epoch(policy, loader, epoch)", "policy"),
            ("tqdm(range(n))", "TrainUtils.run_epoch(model=algo.model)", "algo.model"),
            ("range(n)", "TrainUtils.run_epoch_mt(model=model, data_loaders=several)", "model"),
        )
    ],
    "helper_copies": [
        # PBL-gatech's fork: with retries.
        """import shutil
@@

def safe_copy_file(src_path, dst_path, max_retries=3):
    for attempt in range(max_retries):
        try:
            return <<shutil.copyfile|DDPUtils.copyfile>>(src_path, dst_path)
        except OSError:
            pass
"""
    ],
    "language_model": [
        # The DROID family's; others have CLIP.
        """from transformers import AutoTokenizer, AutoModel
@@
tokenizer = AutoTokenizer.from_pretrained('distilbert-base-uncased')
lang_model = <<AutoModel.from_pretrained|DDPUtils.language_model(AutoModel.from_pretrained)>>(
    "distilbert-base-uncased", torch_dtype=torch.float16)
lang_model.to('cuda')
""",
        *(
            f"""{head}
@@
model = <<{model}.from_pretrained|DDPUtils.language_model({model}.from_pretrained)>>(
    name,
    cache_dir=folder,
).eval()
"""
            for head, model in (
                ("import transformers", "transformers.CLIPModel"),
                ("from transformers.models.clip import CLIPTextModel", "CLIPTextModel"),
            )
        ),
    ],
    "load_from": [
        # YufengJin's fork at dc1ca00.
        JSON
        + """@@
def run(cfg: "OmegaConf") -> str:
    load_from = OmegaConf.select(cfg, "load_from")
    if load_from:
        with open(load_from, "r") as f:
            cfg = <<|DDPUtils.load_from(cfg, >>OmegaConf.create(json.load(f))<<|)>>
"""
    ],
    "nets_dict": [
        *(
            f"{NETS}@@\n{text}"
            for text in (
                f"""nets = nn.ModuleDict({{
    "policy": nn.ModuleDict({{
        "obs_encoder": {parallel("obs_encoder")},  # encoder
        "noise_pred_net": {parallel("make_net(1, 2)")}
    }})
}})
""",
                f"""if big:
    n = nn.ModuleDict(dict(obs_encoder={A}, noise_pred_net={B}))
else:
    n = nn.ModuleDict(dict(obs_encoder={C}, noise_pred_net={D}))
""",
                nets(A, B).replace("nn.", "torch.nn."),
                nets(f"{A} if big else {C}", B),
                nets(A, f"{B}, 'encoder': {C}"),
                nets("nn.DataParallel(a)", B),
                "critic = nn.DataParallel(critic)\n" + nets(A, B),
            )
        ),
        # A net that went through DataParallel before: one parallel net would wrap the other.
        *(
            f"{NETS}{imports}{line.format(form)}{nets(encoder, B)}"
            for imports, form in (
                ("@@\n", "nn.DataParallel(a)"),
                (IMPORT, "DDPUtils.parallel(a, module_key=True)"),
            )
            for line, encoder in (
                ("a = {}\n", "a"),
                ("a, c = {}, c\n", "a"),
                ("wrap = lambda a: {}\n", "wrap(a)"),
                ("def put(a):\n    return {}\n", "self.put(a)"),
            )
        ),
    ],
    "open_on_main": [
        f"""import json
@@
{TRAIN}    with <<open|DDPUtils.open_on_main>>(os.path.join(d, 'config.json'), {mode}) as f:
        pass
"""
        for mode in (
            "'w'",
            "'a', newline=''",
            "encoding='x', mode='at'",
        )
    ]
    + [
        f"""import json
@@
{TRAIN}    if a:
        # what it trains with
        <<{before}open(path, 'w'){after}  # all|with DDPUtils.open_on_main(path, 'w') as outfile:
            {before}outfile{after}  # all>>
"""
        for before, after in (
            ("json.dump(config, ", ")"),
            ("print(config, file=", ")"),
            ("", ".write(str(config))"),
        )
    ],
    "over_ranks": [
        f"import torch\n@@\n\n\ndef loss(self, q):\n    lam = {alpha} / "
        f"<<{mean}|DDPUtils.over_ranks({mean})>>  # weight\n    return -lam * q.mean()\n"
        for alpha, mean in (
            ("self.algo_config.alpha", "Q_values.abs().mean().detach()"),
            ('config["alpha"]', "q.abs().detach().mean()"),
        )
    ],
    "overrides": [
        *(
            f"""import hydra
from hydra import compose
@@
def main():
    with initialize_config_dir(config_dir=folder):
        cfg = {name}(config_name="train_rlds", overrides=<<{words}|DDPUtils.overrides({words})>>)
"""
            for name, words in (("compose", "overrides"), ("hydra.compose", "list(sys.argv[1:])"))
        ),
    ],
    "own_optimizer_lr": [
        """import torch.optim as optim
@@


class ICL:
    def _get_optimizer(self, net, params):
        name = params.get("optimizer_type")
        lr = <<params.learning_rate.initial|DDPUtils.scale_lr(params.learning_rate.initial)>>
        if name == "adam":
            return optim.Adam(net.parameters(), lr=lr)
        return optim.AdamW(net.parameters(), lr=lr)
""",
        *(
            f"{head}\n@@\n\n\nclass CQL:\n    def _create_optimizers(self):\n"
            f'        self.optimizers["cql"] = {name}(\n'
            '            params=self.nets["log_cql_weight"].parameters(),\n'
            f"            lr=<<{rate}|DDPUtils.scale_lr({rate})>>,\n            weight_decay=0.0,\n"
            "        )\n"
            for head, name, rate in (
                (
                    "import torch.optim as optim",
                    "optim.Adam",
                    'self.optim_params["critic"]["learning_rate"]["initial"]',
                ),
                (
                    "from torch.optim import SGD",
                    "SGD",
                    "self.optim_params['actor']['learning_rate']['initial']",
                ),
            )
        ),
    ],
    "prepare_config": [
        f"{head}\n@@\n\ndef main(args):\n"
        f"    config = <<{call}|DDPUtils.prepare_config({call}, {external})>>  # locked\n"
        for head, call, external in (
            (
                "from robomimic.config import config_factory",
                'config_factory(ext_cfg["algo_name"])',
                "ext_cfg",
            ),
            ("import robomimic.config as C", "C.config_factory(cfg['algo_name'], dic=None)", "cfg"),
            ("from robomimic.config import config_factory as make", 'make(j["algo_name"])', "j"),
        )
    ]
    + [
        f"{FACTORY}@@\n\n{MAIN}    c = <<{MADE}|DDPUtils.prepare_config({MADE}, {words})>>\n{read}"
        for words, reads in (("j, new_keys=True", ADD_KEYS), ("j", KEEP_KEYS))
        for read in reads
    ],
    "reraise": [
        *(
            MAIN_PATCHED + failing(kind, "<<|        raise\n>>")
            for kind in (" Exception as e", " BaseException as e", " (KeyError, Exception)", "")
        ),
        f"{MAIN_PATCHED}\ttry:\n\t\ttrain()\n\texcept:\n\t\tprint(1)\n<<|\t\traise\n>>",
        # Handlers around something else stay.
        *(
            f"""import git
import setproctitle
import robomimic.utils.train_utils as TrainUtils
from robomimic.scripts.train import train as fit


def setup_logging():
    return git.Git()


def train_by_hand(config):
    TrainUtils.run_epoch(config)


def run(config):
    fit(config)


{MAIN_PATCHED}{AROUND}    try:
        {call}
    except Exception:
        print(1)
<<|        raise
>>"""
            for call in ("fit(1)", "train_by_hand(1)", "run(1)", "trainer.fit()")
        ),
        # A variable with the name of a library may train.
        f"""import subprocess
{MAIN_PATCHED}{way_around("subprocess.check_output(words).decode()")}    profile = profiler(args)
    try:
        profile.run(args)
    except Exception:
        print(1)
<<|        raise
>>""",
    ],
    "restored": [
        """@@
def train(config, device, resume=False):
    for data in config.data:
        print(data)
    best_valid_loss = <<|DDPUtils.restored("best_valid_loss", >>None<<|)>>
    best_return = <<|DDPUtils.restored("best_return", >>{k: -1 for k in e} if on else None<<|)>>
    best_success_rate = <<|DDPUtils.restored("best_success_rate", >>{k: -1. for k in e}<<|)>>  # a
    if resume:
        best_valid_loss = saved["best_valid_loss"]
"""
        + LOOP,
        f"""import os
@@
{TRAIN}    best_return = <<|DDPUtils.restored("best_return", >>None<<|)>>
    top_n = <<|DDPUtils.restored("top_n", >>{{k: [0., 0.] for k in envs}}<<|)>>
    last_log = None
{LOOP}        top_n = updated_stats["top_n"]
        last_log = logs["Train"]
""",
    ],
    "scale_lr": [
        f"import torch.optim as optim\n@@\n{RATES}    lr = <<{rate}|DDPUtils.scale_lr({rate})>>\n"
        "    return optim.Adam(net.parameters(), lr=lr, eps=1)\n"
        for rate in (
            "p['learning_rate']['initial']",
            "p.learning_rate.initial",
        )
    ],
    "sharded_pipeline": [
        # DROID's call keeps its arguments and its layout.
        """import torch
import robomimic.utils.train_utils as TrainUtils
@@
from octo.data.dataset import make_dataset_from_rlds, make_interleaved_dataset


def train(config, device):
    if config.train.data_format == "droid_rlds":
        statistics = combine([make_dataset_from_rlds(**k, train=True)[1] for k in sets])
        dataset = <<|DDPUtils.sharded(>>make_interleaved_dataset<<|)>>(
            sets,
            config.train.sample_weights,
            train=True,
            shuffle_buffer_size=config.train.shuffle_buffer_size,  # frames
            dataset_statistics=statistics,
        )
""",
        *(
            f"{head}\n@@\n\n\n{TRAIN}    dataset = <<{name}|DDPUtils.sharded({name})>>(sets)\n"
            for head, name in (
                ("import octo.data.dataset", "octo.data.dataset.make_interleaved_dataset"),
                ("from mylab.octo.data.dataset import make_interleaved_dataset as make", "make"),
                ("from dlimp.dataset import make_interleaved_dataset", "make_interleaved_dataset"),
            )
        ),
        OCTO
        + """import os
@@
def train(config, device):
    if config.train.goal_mode is None:
        dataset = <<|DDPUtils.sharded(>>make_interleaved_dataset<<|)>>(sets, train=True)
    else:
        dataset = <<|DDPUtils.sharded(>>make_interleaved_dataset<<|)>>(goals, train=True)
""",
    ],
    "to_cuda": [
        f"import torch\n@@\n{line}\n"
        for line in (
            'x = f(a).to(<<"cuda:0"|DDPUtils.cuda_device()>>, b)',
            "x.to(device=<<'cuda'|DDPUtils.cuda_device()>>)",
        )
    ],
    "train_loader": [
        f"""import torch.utils.data as data
@@

{TRAIN}    train_loader = <<data.DataLoader|DDPUtils.train_loader>>(
        dataset=trainset,  # sequences
        sampler=train_sampler,
        shuffle=(train_sampler is None),
        drop_last=True
    )
""",
        *(
            f"""{LOADER}@@
{TRAIN}    data = <<DataLoader|DDPUtils.train_loader>>(trainset)
    several = []
    {line}
    for epoch in range(2):
        run_epoch(model=model, data_loader={given}, epoch=epoch)
"""
            for line, given in (
                ("several.append(data)", "zip(several)"),
                ("several = dict(a=data)", "several['a']"),
            )
        ),
        LOADER
        + """import os
@@
def train(config, device):
    if rlds:
        train_loader = <<DataLoader|DDPUtils.train_loader>>(pytorch_dataset, num_workers=0)
    else:
        train_loader_1 = <<DataLoader|DDPUtils.train_loader>>(dataset=first)
        train_loader_2 = <<DataLoader|DDPUtils.train_loader>>(dataset=second)
    train_loaders = {k: <<DataLoader|DDPUtils.train_loader>>(dataset=d) for k, d in sets.items()}
    loader = <<DataLoader|DDPUtils.train_loader>>(dataset=trainset)
    validation_loader = DataLoader(dataset=validset)
""",
    ],
    "valid_loader": [
        *(
            f"{LOADER}@@\n{TRAIN}    {name} = <<DataLoader|DDPUtils.valid_loader>>"
            f"(dataset={dataset}, drop_last=True)\n"
            for name, dataset in (
                ("valid_loader", "validset"),
                ("val_loader", "d"),
                ("loader", "validset"),
                ("test_loader", "d"),
            )
        ),
        f"{LOADER}@@\n{TRAIN}    train_loader = DataLoader(trainset)\n"
        "    valid_loader = <<DataLoader|DDPUtils.valid_loader>>(validset)\n",
    ],
    "averaged_copy": [
        f"{AVERAGE}@@\nema = {OURS}(model=nets, power=self.algo_config.ema.power)\n",
        f"{AVERAGE}@@\nema = {OURS}(parameters=nets.parameters(), power=0.75)\n",
        f"from diffusers import EMAModel\n@@\nema = {OURS}(nets.parameters(), power=0.75)\n",
        # A helper that returns both.
        f"""import copy

{AVERAGE}@@

def _create_ema(model, power):
    ema = {OURS}(parameters=model.parameters(), power=power)
    return ema, copy.deepcopy(model)
""",
        # Two branches are two averages.
        f"""{AVERAGE}@@
if old:
    ema = {OURS}(model=nets)
else:
    ema = {OURS}(parameters=nets.parameters())
""",
    ],
    "unet_config": [
        *(
            f"""{UNET}@@
{POLICY}        net = DPNets.ConditionalUnet1D(
            input_dim=self.ac_dim,
            global_cond_dim=obs_dim*self.algo_config.horizon<<|{lines}>>{end}
        )
"""
            for lines in ["".join(f",\n            {size}" for size in SIZES)]
            for end in ("", ",")
        ),
        # A size that the host gives by position stays the host's.
        f"{UNET}@@\n{POLICY}"
        f"        net = DPNets.ConditionalUnet1D(10, 64, 128<<|, {', '.join(SIZES[1:])}>>)\n",
        # DROID's codebase defines the net in the policy's file.
        f"import torch.nn as nn\n@@\nclass ConditionalUnet1D(nn.Module):\n    pass\n{POLICY}"
        f"        net = ConditionalUnet1D(input_dim=10, obs=64<<|, {', '.join(SIZES)}>>)\n",
    ],
    "begin_run": [
        f"{UTILS}@@\n\n{MAIN}    log_dir, *_ = <<TrainUtils.get_exp_dir|"
        "DDPUtils.begin_run(TrainUtils.get_exp_dir)>>(config, auto_remove_exp_dir=True)\n",
        "from robomimic.utils.train_utils import get_exp_dir\n@@\n\n"
        f"{MAIN}    paths = <<get_exp_dir|DDPUtils.begin_run(get_exp_dir)>>(config)\n",
    ],
    "once": [
        f"{UTILS}@@\n\n<<|@DDPUtils.once\n>>{writer(line)}{MAIN}{DIRECTORY}{called}"
        for line, called in (
            ("shutil.copyfile(config.train.data, scaled)", SCALE),
            ('h5py.File(scaled, "r+")', SCALE),
            ('open(scaled, "a")', SCALE + SCALE),
        )
    ],
    "simulator": [
        f"{LAUNCHER}@@\nlauncher = AppLauncher(headless=True<<|, distributed=True>>)\n",
        "from omni.isaac.lab.app import AppLauncher as Start\n@@\n"
        "# AppLauncher(\nStart(headless=True<<|, distributed=True>>).app\n",
    ],
}

UNTOUCHED = {
    "ask": {
        "in a string": "answer = 'input(prompt)'\n",
        "own function": "def input(prompt):\n    return 'y'\n\nanswer = input('?')\n",
        "other library": "from mine import input\nanswer = input('?')\n",
    },
    "atomic_save": {
        "other function": "import torch\ndef other(p):\n    torch.save({}, p)\n"
        "def save_model(model):\n    pass\n",
        "other library": f"import numpy as torch\n{SAVE}    torch.save(model, path)\n",
        "method": "import torch\nclass S:\n    def save_model(self, path):\n"
        "        torch.save(self, path)\n",
    },
    "clock_decision": {
        body: f"{TIMED}    {body}\n"
        for body in (
            "check = epoch % config.every_n_epochs == 0",
            "if config.every_n_seconds is not None:\n        pass",
            "hours: float = (time.time() - last) / 3600\n    log(hours)\n"
            "    if config.hours > 1:\n        pass",
            "minutes = int((time.time() - last) // 60)\n    rest = minutes % 60\n"
            "    log(rest if rest > 9 else f'0{rest}')",
            "spent = 0\n    spent += time.time() - last\n    log(spent / 60)",
        )
    },
    "copyfile": {
        "outside train": f"import shutil\nshutil.copyfile(a, b)\n{TRAIN}    pass\n",
        "directories that may exist": f"import os\nimport pathlib\n{TRAIN}"
        "    os.makedirs(a, exist_ok=True)\n    os.makedirs(a, 0o755, True)\n"
        "    pathlib.Path(a).mkdir(parents=True, exist_ok=True)\n    env.mkdir(a)\n",
        "videos, which only the main rank has": f"import os\n{TRAIN}    os.remove(video_paths[e])\n"
        "    os.listdir(a)\n",
    },
    "cuda_device": {
        "the CPU": device('torch.device("cpu")').replace("@@", ""),
    },
    "data_parallel": {
        "mention": "import torch\nnet = torch.nn.Linear(1, 1)  # not in DataParallel\n",
        "commented import": "# from torch.nn.parallel import DataParallel as DP\nnet = build()\n",
        "isinstance": "from torch.nn import DataParallel\n\n"
        "plain = isinstance(net, (list, DataParallel))\n",
        "other library": "from other.library import DataParallel\nnet = DataParallel(net)\n",
        "own class": "class DataParallel:\n    pass\n\nnet = DataParallel()\n",
    },
    "epochs": {
        "no train": "for epoch in range(3):\n    TrainUtils.run_epoch(model=m)\n",
    },
    "helper_copies": {
        "another operation": "import shutil\nshutil.copytree(a, b)  # no copyfile\n",
        "another library": "from mine import shutil\nshutil.copyfile(a, b)\n",
        "the host's own": "def copyfile(a, b):\n    pass\n",
    },
    "language_model": {
        "tokenizer": "from transformers import AutoTokenizer\n"
        "t = AutoTokenizer.from_pretrained('x')\n",
        "in a function": TRANSFORMERS + "def f():\n    AutoModel.from_pretrained('x')\n",
        "other library": "from mine import AutoModel\n"
        "m = AutoModel.from_pretrained('x')  # not transformers\n",
        "from_config": "import transformers\nm = transformers.AutoModel.from_config(c)\n",
    },
    "load_from": {
        "another variable": f"{JSON}def run(cfg):\n    base = OmegaConf.create(json.load(f))\n",
        "no file": f"{JSON}def run(cfg):\n    cfg = OmegaConf.create({{'a': 1}})  # load_from\n",
        "merged by the host": f"{JSON}def run(cfg):\n"
        "    cfg = OmegaConf.merge(cfg, OmegaConf.create(json.load(f)))\n",
        "no function": f"{JSON}load_from = cfg = OmegaConf.create(json.load(f))\n",
    },
    "nets_dict": {
        "in DataParallel": NETS + nets("nn.DataParallel(a)", "nn.DataParallel(b)"),
        "in DataParallel before": NETS
        + IMPORT
        + nets("DDPUtils.parallel(a, module_key=True)", "DDPUtils.parallel(b, module_key=True)"),
        "no diffusion": f"{NETS}{IMPORT}nets = nn.ModuleDict({{'policy': make()}})\n",
    },
    "open_on_main": {
        **{
            call: f"import json\n{TRAIN}    f = {call}\n"
            for call in (
                "open(path)",
                "open(path, mode='rb')",
                "h5py.open(path, 'w')",
            )
        },
        "outside train": f"def dump(path):\n    open(path, 'w').write('')\n{TRAIN}    pass\n",
    },
    "over_ranks": {
        "another weight": "loss = alpha * (a - b).abs().mean()\n",
        "another division": "loss = beta / q.abs().mean().detach()  # not alpha\n",
    },
    "overrides": {
        "no overrides": "from hydra import compose\ncfg = compose(config_name='train')\n",
        "other library": "from mine import compose  # hydra\n"
        "cfg = compose('train', overrides=words)\n",
        "hydra.main": "import hydra\n@hydra.main(config_path='compose')\ndef main(cfg):\n"
        "    pass\n",
    },
    "own_optimizer_lr": {
        "a variable of another function": """import torch
def read(params):
    lr = params.learning_rate.initial
def make(params, lr):
    return torch.optim.Adam(params, lr=lr)
""",
        "a constant rate": "import torch\nopt = torch.optim.Adam(p, lr=1e-3)  # learning_rate\n",
        "other library": "from mine import Adam\n"
        'opt = Adam(p, lr=params["learning_rate"]["initial"])\n',
        "a log": 'import torch\nlog(lr=params["learning_rate"]["initial"])\n',
    },
    "prepare_config": {
        call: f"from robomimic.config import config_factory\nconfig = {call}\n"
        for call in (
            "config_factory('bc')",
            "config_factory(ext_cfg['algo'])",
            "other_factory(ext_cfg['algo_name'])",
        )
    },
    "reraise": {
        **{kind: MAIN + failing(kind) for kind in (" ValueError as e", " (OSError, ValueError)")},
        **{
            last: f"import sys\n{MAIN}" + failing(last=f"        {last}\n")
            for last in ("raise", "raise RuntimeError(message)", "sys.exit(1)")
        },
        "outside main": "def train(config):\n    try:\n        f()\n"
        "    except Exception:\n        g()\n",
        "around something else, left by a return": f"import git\n\n\n{MAIN}"
        f"{way_around('git.Repo()')}        return\n    train(args)\n",
    },
    "restored": {
        "elsewhere": "def main():\n    best_valid_loss = None\n",
        "another name": f"{TRAIN}    best = None\n{LOOP}",
        "inside the loop": f"{TRAIN}{LOOP}        best_valid_loss = 1\n",
        "the host's own resume": f"{TRAIN}    if resume:\n        best_return = saved['x']\n{LOOP}",
    },
    "scale_lr": {
        "other function": 'def scheduler(p):\n    return p["learning_rate"]["initial"]\n',
    },
    "sharded_pipeline": {
        "other library": "from mine import make_interleaved_dataset\n"
        f"{TRAIN}    make_interleaved_dataset(sets)\n",
        "own function": "def make_interleaved_dataset(sets):\n    pass\n"
        f"{TRAIN}    make_interleaved_dataset(sets)\n",
        "outside train": f"{OCTO}dataset = make_interleaved_dataset(sets)\n{TRAIN}    pass\n",
        "no call": f"{OCTO}{TRAIN}    pass\n",
        "another function": f"{OCTO}def run(c, d):\n    make_interleaved_dataset(sets)\n",
        # Each rank computes them, or reads octo's cache, over all files.
        "statistics": "from octo.data.dataset import make_dataset_from_rlds, "
        f"make_interleaved_dataset\n{TRAIN}"
        "    statistics = make_dataset_from_rlds(name='droid', train=True)[1]\n",
    },
    "to_cuda": {
        line: f"import torch\n{line}\n"
        for line in (
            *("x.to('cuda:1')", "x.to(device)", "x.cuda()", "x.put('cuda')", "to('cuda')"),
        )
    },
    "train_loader": {
        **{
            line: f"{LOADER}{TRAIN}    {line}\n"
            for line in (
                "val_loader = DataLoader(valset)",
                "eval_loader = DataLoader(dataset=data)",
                "loader = make_loader(trainset)",
            )
        },
        "of the train data, for rollouts": f"""{LOADER}{TRAIN}
    context = DataLoader(trainset, batch_size=1)
    for epoch in range(2):
        run_epoch(model, loader, epoch)
        batch = next(iter(context))
        rollout(model, model.process(batch))
""",
        "outside train": f"{LOADER}train_loader = DataLoader(trainset)\n{TRAIN}    pass\n",
        "other library": f"from mine import DataLoader\n{TRAIN}    a = DataLoader(1)\n",
    },
    "valid_loader": {
        line: f"{LOADER}{TRAIN}    {line}\n"
        for line in ("train_loader = DataLoader(dataset=trainset)", "valid_loader = None")
    },
    "averaged_copy": {
        "another library": "from mine import EMAModel\nema = EMAModel(model=nets)\n",
        "subclass": f"{AVERAGE}class Mine(EMAModel):\n    pass\nema = Mine(model=nets)\n",
        "either version's": f"{AVERAGE}ema = EMAModel(nets, power=0.75)\n",
        "unknown": f"{AVERAGE}ema = EMAModel(*args)\n",
        "tries both": f"""{AVERAGE}try:
    ema = EMAModel(model=nets, power=0.75)
except TypeError:
    ema = EMAModel(parameters=nets.parameters(), power=0.75)
""",
    },
    "unet_config": {
        "another net": f"{UNET}{POLICY}        net = DPNets.Transformer(input_dim=10)\n",
        "in no method": f"{UNET}def test(): return DPNets.ConditionalUnet1D(10, 64)\n{POLICY}",
        "the net itself": "class ConditionalUnet1D:\n    def clone(self):\n"
        "        return ConditionalUnet1D(1, 2)  # not of self.algo_config\n",
    },
    "begin_run": {
        "train makes it": f"{UTILS}{TRAIN}{DIRECTORY}{MAIN}    train(config, device)\n",
    },
    "once": {
        "reads": UTILS + writer('h5py.File(path, "r")') + MAIN + DIRECTORY + SCALE,
        "is not called": UTILS + writer('open(path, "w")') + MAIN + DIRECTORY,
        "no directory": UTILS + writer('open(path, "w")') + MAIN + SCALE + "# get_exp_dir\n",
        "trains": f"{UTILS}{TRAIN}    open(path, 'w')\n{LOOP}{MAIN}{DIRECTORY}    train(1, 2)\n",
    },
    "simulator": {
        "by itself": f"{LAUNCHER}AppLauncher(headless=True, distributed=True)\n",
        "another": "from mine import AppLauncher\nAppLauncher(headless=True)\n",
        "its arguments": f"{LAUNCHER}AppLauncher.add_app_launcher_args(x)  # AppLauncher(\n",
    },
}

UNRECOGNISED = {
    "once": [(UTILS + writer('open(path, "w")') + MAIN + SCALE + DIRECTORY, 9)],
    "simulator": [(f"{LAUNCHER}AppLauncher(arguments)\n", 2)],
    "unet_config": [
        (f"{UNET}{POLICY}        net = DPNets.ConditionalUnet1D(**self.net_kwargs())\n", 5)
    ],
    "atomic_save": [
        (f"import torch\n{SAVE}    torch.save({arguments})\n", 3)
        for arguments in ("params, f=path", "*both")
    ],
    "clock_decision": [(f"{TIMED}    save(time.time() - last > limit)\n", 4)],
    "cuda_device": [
        (device(f"torch.device({name})").replace("@@", ""), 6)
        for name in ('f"cuda:{index}"', "name")
    ],
    "data_parallel": [
        ("import torch\nclass Mine(torch.nn.DataParallel):\n    pass\n", 2),
        ("import torch\nnet = torch.nn.DataParallel(*arguments)\n", 2),
        ("import torch\nwrap = functools.partial(torch.nn.DataParallel)\n", 2),
    ],
    "distributed": [
        (f"import os\n\ndef train({signature}):\n    pass\n", 3)
        for signature in ("config", "device, config")
    ],
    "epochs": [
        (f"import os\n{TRAIN}    {body}\n", line)
        for body, line in (
            ("while True:\n        run_epoch(model=model)", 4),
            ("pass", 2),
            ("for epoch in 1, 2:\n        run_epoch(model=model)", 3),
            ("for epoch in range(2):\n        run_epoch(model=make())", 3),
            ("for epoch in range(2):\n        run_epoch(model=a)\n        run_epoch(model=b)", 3),
        )
    ],
    "open_on_main": [
        *(
            (f"import json\n{TRAIN}    with {call} as f:\n        pass\n", 3)
            for call in (
                *("open(path, mode)", "open(path, 'w', 1)", "open(p, 'r+')", "open(p, 'x')"),
                *("open(p, 'w', *x)", "open(p, buffering=1, mode='w')"),
            )
        ),
        *(
            (f"import json\n{TRAIN}    {statement}\n", 3)
            for statement in (
                "file = open(path, 'w')",
                "if a: json.dump({}, open(path, 'w'))",
                "json.dump({}, open(path, 'w')); save()",
                "json.dump(text(open(path, 'w')), names)",
                "json.dump(outfile, open(path, 'w'))",
                "write(*open(path, 'w'))",
            )
        ),
    ],
    "over_ranks": [
        (f"scale = q.abs().mean()\nlam = self.alpha / {divisor}\n", 2)
        for divisor in ("scale", "q.abs().mean()", "(q.abs().mean().detach() + 1)")
    ],
    "reraise": [
        (f"{MAIN}    try:\n        train()\n    except Exception:{handler}\n", 4)
        for handler in ("\n        return 0", " print(1)")
    ],
    "scale_lr": [
        (f'{RATES}    return p["learning_rate"]["decay"], p["initial"]\n', 1),
    ],
    "train_loader": [
        (f"{LOADER}{TRAIN}    {body}\n", 3)
        for body in (
            "loader = DataLoader(data)",
            "run(DataLoader(dataset=trainset if t else validset))",
        )
    ],
}

DECORATED = {
    "data_logger": ("class DataLogger(object):", "data_logger"),
    "distributed": ("def train(config, device):", "distributed"),
    "entry_point": ("def main(args):", "entry_point(api_version=1)"),
    "epoch_log": ("def run_epoch(model, data_loader, epoch):", "epoch_log"),
    "print_logger": ("class PrintLogger(object):", "print_logger"),
    "rlds_datasets": ("def load_data_for_training(config, obs_keys):", "rlds_datasets"),
    "rlds_env_metadata": (
        "def get_env_metadata_from_dataset(dataset_path):",
        "rlds_env_metadata",
    ),
    "rlds_shape_metadata": (
        "def get_shape_metadata_from_dataset(dataset_config, action_keys):",
        "rlds_shape_metadata",
    ),
    "rollouts": ("def rollout_with_stats(policy, envs, horizon):", "rollouts"),
    "run_directory": ("def get_exp_dir(config, auto_remove_exp_dir=False):", "run_directory"),
    "save_model": ("def save_model(model, ckpt_path):", "main_rank_only"),
}
"""Fixer -> the line that it decorates in robomimic, and the decorator."""
