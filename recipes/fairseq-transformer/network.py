"""The Transformer of "Attention Is All You Need", with one embedding for both languages and the output."""

import math
from dataclasses import dataclass

import torch
from text import PAD
from torch import Tensor, nn


@dataclass(frozen=True)
class Shape:
    """Sizes of a network; `big` are those of fairseq's transformer_vaswani_wmt_en_de_big."""

    width: int
    heads: int
    inner: int
    layers: int
    dropout: float


SHAPES = {
    "big": Shape(1024, 16, 4096, 6, 0.3),
    "base": Shape(512, 8, 2048, 6, 0.1),
    "tiny": Shape(64, 4, 128, 2, 0.0),
}


class Translator(nn.Module):
    """Source sentences and translations so far in, guesses of every next word out."""

    def __init__(self, words: int, shape: Shape) -> None:
        super().__init__()
        self.width = shape.width
        self.embedding = nn.Embedding(words, shape.width, padding_idx=PAD)
        nn.init.normal_(self.embedding.weight, std=shape.width**-0.5)
        self.body = nn.Transformer(
            shape.width, shape.heads, shape.layers, shape.layers, shape.inner, shape.dropout, batch_first=True
        )
        self.body.encoder.enable_nested_tensor = False  # saves nothing here, and warns of itself
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, source: Tensor, so_far: Tensor) -> Tensor:
        length = so_far.shape[1]
        later = torch.ones(length, length, dtype=torch.bool, device=source.device).triu(1)
        empty = source == PAD
        seen = self.body(
            self.placed(source),
            self.placed(so_far),
            tgt_mask=later,
            src_key_padding_mask=empty,
            memory_key_padding_mask=empty,
            tgt_is_causal=True,
        )
        return nn.functional.linear(seen, self.embedding.weight)

    def placed(self, words: Tensor) -> Tensor:
        """Embedded words with their places: a word's place is sines and cosines of many lengths."""
        half = self.width // 2
        rates = torch.exp(torch.arange(half, device=words.device) * (-math.log(10_000) / half))
        angles = torch.arange(words.shape[1], device=words.device)[:, None] * rates
        places = torch.cat((angles.sin(), angles.cos()), dim=1)
        out: Tensor = self.dropout(self.embedding(words) * math.sqrt(self.width) + places)
        return out
