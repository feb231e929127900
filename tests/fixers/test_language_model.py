"""Language models that are loaded while a file is imported (DROID: DistilBERT; others: CLIP)."""

from __future__ import annotations

import pytest

from tests.fixers.support import check_edit, check_untouched

OURS = "import robomimic_ddp.api as DDPUtils\n"


@pytest.mark.parametrize(
    "text",
    [
        "from transformers import AutoTokenizer\nt = AutoTokenizer.from_pretrained('x')\n",
        "from transformers import AutoModel\ndef f():\n    AutoModel.from_pretrained('x')\n",
        "from mine import AutoModel\nm = AutoModel.from_pretrained('x')  # not transformers\n",
        "import transformers\nm = transformers.AutoModel.from_config(c)\n",
        "from_pretrained('x')\n",
    ],
    ids=["tokenizer", "in a function", "other library", "from_config", "bare name"],
)
def test_leaves_what_is_not_loaded_at_import(text):
    check_untouched("language_model", text)


def test_distilbert_of_the_droid_family():
    text = """from transformers import AutoTokenizer, AutoModel
{ours}tokenizer = AutoTokenizer.from_pretrained('distilbert-base-uncased')
lang_model = {model}("distilbert-base-uncased", torch_dtype=torch.float16)
lang_model.to('cuda')
"""
    check_edit(
        "language_model",
        text.format(ours="", model="AutoModel.from_pretrained"),
        text.format(ours=OURS, model="DDPUtils.language_model(AutoModel.from_pretrained)"),
    )


@pytest.mark.parametrize(
    ("imports", "model"),
    [
        ("from transformers import CLIPTextModelWithProjection as C\n", "C"),
        ("import transformers\n", "transformers.CLIPModel"),
        ("from transformers.models.clip import CLIPTextModel\n", "CLIPTextModel"),
    ],
)
def test_clip_under_any_alias_over_lines_and_chained(imports, model):
    text = """{}model = {}(
    name,
    cache_dir=folder,
).eval()
"""
    check_edit(
        "language_model",
        text.format(imports, f"{model}.from_pretrained"),
        text.format(imports + OURS, f"DDPUtils.language_model({model}.from_pretrained)"),
    )


def test_in_a_try_at_top_level():
    text = """from transformers import AutoModel
{}try:
    model = {}("x")
except OSError:
    model = None
"""
    check_edit(
        "language_model",
        text.format("", "AutoModel.from_pretrained"),
        text.format(OURS, "DDPUtils.language_model(AutoModel.from_pretrained)"),
    )
