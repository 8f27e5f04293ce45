"""Sentences that praise or blame, and a model small enough to learn them on a CPU in seconds."""

import random
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import DistilBertConfig, DistilBertForSequenceClassification, PreTrainedTokenizerFast

PRAISE = ["wonderful", "moving", "clever", "brilliant", "warm", "funny", "gripping", "honest", "tender", "fresh"]
BLAME = ["dull", "clumsy", "tired", "hollow", "shallow", "tedious", "messy", "lifeless", "bland", "forced"]
SUBJECTS = ["film", "story", "plot", "cast", "score", "script", "ending", "dialogue", "camera", "pacing"]
FORMS = (
    "the {subject} is {word} and the {other} is {second}",
    "what a {word} {subject} with such a {second} {other}",
    "i found the {subject} {word} , even {second} , and the {other} too",
    "a {word} {subject} , a {second} {other} , nothing else",
)
COUNTS = 600, 200  # to train on, to test on
Pairs = list[tuple[str, int]]


def sentences(seed: int) -> tuple[Pairs, Pairs]:
    """Sentences with 1 for praise and 0 for blame, to train and to test on."""
    source = random.Random(seed)

    def one() -> tuple[str, int]:
        label = source.randrange(2)
        word, second = source.sample(PRAISE if label else BLAME, 2)
        subject, other = source.sample(SUBJECTS, 2)
        return source.choice(FORMS).format(word=word, second=second, subject=subject, other=other), label

    train, test = ([one() for _ in range(count)] for count in COUNTS)
    return train, test


def model(train: Pairs) -> tuple[Any, Any]:
    """A tokenizer of the words in there, and a DistilBERT of one narrow layer with fresh weights."""
    words = sorted({word for text, _ in train for word in text.split()})
    vocabulary = {word: index for index, word in enumerate(["[PAD]", "[UNK]", *words])}
    plain = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain, pad_token="[PAD]", unk_token="[UNK]")
    shape = DistilBertConfig(vocab_size=len(vocabulary), dim=64, n_heads=4, n_layers=1, hidden_dim=128, num_labels=2)
    return tokenizer, DistilBertForSequenceClassification(shape)
