"""Refuses hosts that already train on several ranks by other means."""

from __future__ import annotations

import pytest

from robomimic_ddp.patches.host.already_distributed import find_refusal
from robomimic_ddp.patches.host.hosts import find_host
from tests.patches.support import snapshot


def script(host, text: str):
    (host / "scripts" / "train_mine.py").write_text(text)
    return find_refusal(find_host(str(host)))


@pytest.mark.parametrize(
    "text",
    [
        "# from torch.nn.parallel import DistributedDataParallel as DDP\n",
        '"""Works with accelerate and lightning."""\n',
        "from torch.nn.parallel import DistributedDataParallel\n",
        "accelerate = 2.0\nfaster = accelerate * 2\n",
        "from .lightning import flash\nflash()\n",
        "from accelerate import (\n",
    ],
    ids=["comment", "docstring", "unused", "variable", "relative import", "does not parse"],
)
def test_mentions_do_not_count(host, text):
    assert script(host, text) is None


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (
            "from torch.nn.parallel import DistributedDataParallel as DDP\nm = DDP(m)\n",
            "DistributedDataParallel",
        ),
        ("import torch.distributed as dist\ndist.init_process_group()\n", "process group"),
        ("from accelerate import Accelerator\na = Accelerator()\n", "accelerate"),
        ("import pytorch_lightning as pl\nclass M(pl.LightningModule):\n    pass\n", "Lightning"),
        ("import lightning.pytorch as pl\npl.Trainer()\n", "Lightning"),
        ("from torch.distributed.fsdp import FullyShardedDataParallel as F\nm = F(m)\n", "FSDP"),
        ("def f():\n    import deepspeed\n    deepspeed.initialize()\n", "DeepSpeed"),
    ],
)
def test_uses_are_named_with_their_place(host, text, found):
    refusal = script(host, text)
    assert found in str(refusal)
    assert refusal.uses[0][:2] == ("scripts/train_mine.py", 3 if "def f" in text else 2)


def test_an_own_way_in_several_places(host):
    text = "import torch.distributed as dist\nfrom accelerate import Accelerator\n"
    refusal = script(host, text + "dist.init_process_group()\nAccelerator()\nAccelerator()\n")
    assert "scripts/train_mine.py:3 and 2 more places" in str(refusal)
    assert refusal.ways == ("a separate process group", "accelerate")


def test_the_commands_touch_nothing_and_say_why(host, command):
    script(host, "from accelerate import Accelerator\na = Accelerator()\n")
    before = snapshot(host)
    for name in ("status", "diff", "apply"):
        code, out, err = command(name, host)
        assert code == 1
        assert "accelerate" in (out + err) and "scripts/train_mine.py:2" in (out + err)
        assert "Remove that code" in (out + err)
    assert snapshot(host) == before
