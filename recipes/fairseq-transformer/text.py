"""Pairs of sentences as numbers, in batches of at most so many words: read from files, or made up."""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

PAD, BEGIN, END, UNKNOWN = range(4)
SPECIAL = 4
SHORTEST = 4  # words of a made-up sentence
Pair = tuple[list[int], list[int]]


@dataclass(frozen=True)
class Corpus:
    """Training and validation pairs, and how many words there are."""

    train: tuple[Pair, ...]
    valid: tuple[Pair, ...]
    words: int


def made_up(sentences: int, words: int, longest: int, seed: int) -> Corpus:
    """A language whose translation is its sentences backwards, each word one further: small, and to be learned."""
    source = random.Random(seed)

    def pair() -> Pair:
        said = [source.randrange(words) for _ in range(source.randint(SHORTEST, longest))]
        told = [(one + 1) % words for one in reversed(said)]
        return [SPECIAL + one for one in said] + [END], [SPECIAL + one for one in told] + [END]

    held_out = max(8, sentences // 10)
    return Corpus(tuple(pair() for _ in range(sentences)), tuple(pair() for _ in range(held_out)), words + SPECIAL)


def read(folder: Path, languages: tuple[str, str], most: int) -> Corpus:
    """`train.en`, `train.de`, `valid.en`, `valid.de`: a sentence a line, tokens apart by spaces, as BPE leaves them.

    Raises:
        SystemExit: A file is missing, or two do not have the same number of lines.
    """
    texts = {part: tuple(lines(folder / f"{part}.{language}") for language in languages) for part in ("train", "valid")}
    for part, (first, second) in texts.items():
        if len(first) != len(second):
            raise SystemExit(f"{folder}/{part}: {len(first)} lines in {languages[0]}, {len(second)} in {languages[1]}")
    counts = Counter(word for side in texts["train"] for line in side for word in line)
    known = {word: SPECIAL + index for index, (word, _) in enumerate(counts.most_common(most))}

    def numbers(words: Sequence[str]) -> list[int]:
        return [*(known.get(word, UNKNOWN) for word in words), END]

    def pairs(part: str) -> tuple[Pair, ...]:
        return tuple((numbers(a), numbers(b)) for a, b in zip(*texts[part], strict=True) if a and b)

    return Corpus(pairs("train"), pairs("valid"), SPECIAL + len(known))


def lines(path: Path) -> list[list[str]]:
    try:
        return [line.split() for line in path.read_text().splitlines()]
    except OSError as error:
        raise SystemExit(f"{path}: {error.strerror}; --data wants train and valid of both languages there") from error


def batches(pairs: Sequence[Pair], most: int, seed: int, place: tuple[int, int]) -> Iterator[list[Pair]]:
    """This rank's batches of an epoch: pairs of about one length, at most `most` words with what fills them up.

    Every rank gets the same number of them, else those with more would wait for ever for the others.

    Raises:
        SystemExit: A sentence alone has more words than a batch.
    """
    rank, world = place
    order = random.Random(seed)
    by_length = sorted(pairs, key=lambda pair: (longest(pair), order.random()))
    made: list[list[Pair]] = [[]]
    for pair in by_length:
        if longest(pair) > most:
            raise SystemExit(
                f"a sentence of {longest(pair)} words is more than a batch of {most}: --set max_tokens=..."
            )
        if longest(pair) * (len(made[-1]) + 1) > most:
            made.append([])
        made[-1].append(pair)
    order.shuffle(made)
    yield from made[: len(made) // world * world][rank::world]


def longest(pair: Pair) -> int:
    return max(len(side) for side in pair)
