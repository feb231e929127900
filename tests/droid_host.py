"""A host of the DROID family's shape, made at test time from the installed robomimic.

What differs from the installed one are the constructs that DROID's code is known for, in our own
words: nets in DataParallel, `.module` at inference, a data iterator that outlives epochs, a
`train()` without `resume` and with an octo pipeline (tests/rlds/octo_shaped.py stands for octo),
and RLDS keys in the config. The installed diffusers has no EMAModel(model=...), so the EMA stays
the installed host's.
"""

from __future__ import annotations

from pathlib import Path

from tests.hosts import Host, copy_host

_DEVICES = "device_ids=list(range(0, torch.cuda.device_count()))"
_LOADER_ARGUMENTS = """
        dataset=trainset,
        sampler=train_sampler,
        batch_size=config.train.batch_size,
        shuffle=(train_sampler is None),
        num_workers=config.train.num_data_workers,
        drop_last=True
    )
"""

CHANGES: dict[str, list[tuple[str, str]]] = {
    "algo/diffusion_policy.py": [
        (
            '"obs_encoder": obs_encoder,\n',
            f'"obs_encoder": torch.nn.parallel.DataParallel(obs_encoder, {_DEVICES}),\n',
        ),
        (
            '"noise_pred_net": noise_pred_net\n',
            f'"noise_pred_net": torch.nn.parallel.DataParallel(noise_pred_net, {_DEVICES})\n',
        ),
        (
            '(inputs, nets["policy"]["obs_encoder"],',
            '(inputs, nets["policy"]["obs_encoder"].module,',
        ),
        (
            'nets["policy"]["noise_pred_net"](\n                sample=',
            'nets["policy"]["noise_pred_net"].module(\n                sample=',
        ),
    ],
    "config/base_config.py": [
        (
            "    def algo_config(self):\n",
            """        self.train.data_format = "robomimic"
        self.train.data_path = ""
        self.train.dataset_names = [""]
        self.train.sample_weights = [1]
        self.train.shuffle_buffer_size = 100
        self.train.subsample_length = 100
        self.train.num_parallel_calls = 2
        self.train.traj_transform_threads = 2
        self.train.traj_read_threads = 2
        self.train.action_shapes = [(1, 1)]
        self.algo.noise_samples = 1
        self.experiment.mse.enabled = False
        self.observation.image_dim = []

    def algo_config(self):
""",
        ),
    ],
    "utils/train_utils.py": [
        (
            "    return log_dir, output_dir, video_dir, time_dir\n",
            """    vis_dir = os.path.join(time_dir, "vis")
    os.makedirs(vis_dir)
    return log_dir, output_dir, video_dir, vis_dir
""",
        ),
        (
            "validate=False, num_steps=None, obs_normalization_stats=None):",
            "validate=False, num_steps=None, obs_normalization_stats=None, data_loader_iter=None):",
        ),
        ("    if num_steps is None:\n        num_steps = len(data_loader)\n", ""),
        (
            "    data_loader_iter = iter(data_loader)\n    for _ in",
            "    if data_loader_iter is None:\n"
            "        data_loader_iter = iter(data_loader)\n    for _ in",
        ),
        (
            "/ 60.\n\n    return step_log_all\n",
            "/ 60.\n\n    return step_log_all, data_loader_iter\n",
        ),
    ],
    "scripts/train.py": [
        ("def train(config, device, resume=False):", "def train(config, device):"),
        ("device=device, resume=args.resume)", "device=device)"),
        ("    # first set seeds\n", "    resume = False\n    # first set seeds\n"),
        (
            "    log_dir, ckpt_dir, video_dir, time_dir = TrainUtils.get_exp_dir(",
            "    log_dir, ckpt_dir, video_dir, vis_dir = TrainUtils.get_exp_dir(",
        ),
        (
            "    # path for latest model and backup",
            "    time_dir = os.path.dirname(log_dir)\n    # path for latest model and backup",
        ),
        (
            "    trainset, validset = TrainUtils.load_data_for_training(\n"
            '        config, obs_keys=shape_meta["all_obs_keys"])\n',
            """    ds_format = config.train.data_format
    if ds_format == "droid_rlds":
        from octo.data.dataset import make_dataset_from_rlds, make_interleaved_dataset
        from robomimic.utils.rlds_utils import TorchRLDSDataset, shapes_of, to_robomimic
        sets = [{"name": n, "data_dir": config.train.data_path} for n in config.train.dataset_names]
        statistics = make_dataset_from_rlds(**sets[0], train=True)[1]
        dataset = make_interleaved_dataset(
            sets,
            config.train.sample_weights,
            train=True,
            shuffle_buffer_size=config.train.shuffle_buffer_size,
            dataset_statistics=statistics,
        )
        dataset = dataset.map(to_robomimic)
        trainset, validset, env_meta = TorchRLDSDataset(dataset), None, {}
        shape_meta = shapes_of(dataset, config)
        env_meta_list, shape_meta_list = [env_meta], [shape_meta]
    else:
        trainset, validset = TrainUtils.load_data_for_training(
            config, obs_keys=shape_meta["all_obs_keys"])
""",
        ),
        (
            "    train_loader = DataLoader(" + _LOADER_ARGUMENTS,
            """    if ds_format == "droid_rlds":
        train_loader = DataLoader(
            trainset,
            batch_size=config.train.batch_size,
            num_workers=0,  # the pipeline has its threads
        )
    else:
        train_loader = DataLoader("""
            + _LOADER_ARGUMENTS.replace("\n    ", "\n        "),
        ),
        (
            "    for epoch in range(start_epoch,",
            "    data_loader_iter = iter(train_loader)\n    for epoch in range(start_epoch,",
        ),
        (
            "        step_log = TrainUtils.run_epoch(\n            model=model,\n"
            "            data_loader=train_loader,\n",
            "        step_log, data_loader_iter = TrainUtils.run_epoch(\n            model=model,\n"
            "            data_loader=train_loader,\n"
            "            data_loader_iter=data_loader_iter,\n",
        ),
        (
            "                step_log = TrainUtils.run_epoch(",
            "                step_log, _ = TrainUtils.run_epoch(",
        ),
    ],
}
"""File of the package -> (text of the installed host, text in its place), each there once."""

_RLDS_UTILS = "from tests.rlds.octo_shaped import TorchRLDSDataset, shapes_of, to_robomimic\n"
_OCTO = "from tests.rlds.octo_shaped import make_dataset_from_rlds, make_interleaved_dataset\n"


def droid_shaped(folder: Path) -> Host:
    """An unedited host of DROID's shape in `folder`, with the small net of the test hosts."""
    host = copy_host(folder)
    for name, pairs in CHANGES.items():
        path = host.package / name
        text = path.read_text()
        for old, new in pairs:
            assert text.count(old) == 1, f"{path} has changed: {old!r} was expected once"
            text = text.replace(old, new)
        path.write_text(text)
    (host.package / "utils" / "rlds_utils.py").write_text(_RLDS_UTILS)
    octo = folder / "octo" / "data"
    octo.mkdir(parents=True)
    (octo / "dataset.py").write_text(_OCTO)
    return host
