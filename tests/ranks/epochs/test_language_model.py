"""The stand-in for a language model: when it loads, and where."""

from __future__ import annotations

from collections import OrderedDict

import torch

from robomimic_ddp.data.language.lazy_model import LanguageModel, language_model

VOCABULARY, WIDTH = 50, 4


class Output(OrderedDict):
    """Keys as attributes too, as outputs of transformers have them."""

    def __getattr__(self, name):
        return self[name]


class Encoder(torch.nn.Module):
    """Sums over its row, padding included, as DROID's reading of DistilBERT does."""

    loads = 0

    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCABULARY, WIDTH)
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            self.embedding.weight.copy_(torch.randn(VOCABULARY, WIDTH, generator=generator))
        self.rows = 0

    @classmethod
    def from_pretrained(cls, name, scale=1.0):
        cls.loads += 1
        model = cls().eval()
        model.name, model.scale = name, scale
        return model

    def forward(self, input_ids, attention_mask):
        self.rows += len(input_ids)
        hidden = self.embedding(input_ids) * self.scale
        mean = (hidden * attention_mask[..., None]).mean(1, keepdim=True)
        return Output(last_hidden_state=hidden + mean)


def batch(*texts: str) -> dict[str, torch.Tensor]:
    """Letters as tokens, padded to the longest text."""
    longest = max(map(len, texts))
    ids = [[ord(c) - 96 for c in text] + [0] * (longest - len(text)) for text in texts]
    mask = [[1] * len(text) + [0] * (longest - len(text)) for text in texts]
    return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}


def fresh() -> LanguageModel:
    Encoder.loads = 0
    return language_model(Encoder.from_pretrained)("tiny", scale=2.0)


def test_nothing_is_loaded_before_the_first_use():
    model = fresh()
    assert model.to(torch.float64).eval() is model
    assert Encoder.loads == 0
    with torch.no_grad():
        output = model(**batch("push"))
    assert Encoder.loads == 1
    assert output.last_hidden_state.dtype == torch.float64, "the move was remembered"
    assert (model.name, model.scale) == ("tiny", 2.0)
    assert Encoder.loads == 1


def test_every_batch_is_encoded_as_a_whole():
    model = fresh()
    with torch.no_grad():
        model(**batch("push", "push")), model(**batch("push", "push"))
    assert model.rows == 4
