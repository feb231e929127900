"""What a warm start has imported before a job begins: other people's packages, never ours or the
host's.

A name that is missing here, or not installed, costs a job its time and nothing else.
"""

from __future__ import annotations

HOST = (
    "torch",
    "torch._dynamo",  # torch imports it when the first optimizer is made
    "torch.utils.data",
    "torch.distributed.run",
    "torch.distributed.elastic.agent.server.local_elastic_agent",
    "torch.distributed.elastic.rendezvous.c10d_rendezvous_backend",
    "torch.distributed.elastic.rendezvous.dynamic_rendezvous",
    "torch.distributed.optim",
    "torch.nn.parallel",
    "torchvision.models",
    "torchvision.transforms",
    "diffusers.schedulers.scheduling_ddim",
    "diffusers.schedulers.scheduling_ddpm",
    "diffusers.training_utils",
    "h5py",
    "imageio",
    "libcst",
    "matplotlib.pyplot",
    "omegaconf",
    "psutil",
    "tensorboardX",
    "termcolor",
    "tqdm",
)
RLDS = ("triton", *HOST, "tensorflow", "tensorflow_datasets")
"""triton before TensorFlow: robomimic_ddp/data/rlds/tf_import.py."""

RUN_AS_MAIN = ("torch.distributed.run",)
"""Forgotten after its own imports are done: Python warns of a module that is imported before it is
run.
"""
