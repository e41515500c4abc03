"""Rated sentences of four kinds (VADER), as hashed words."""

import re
from pathlib import Path
from typing import Annotated
from zlib import crc32

import numpy as np

from fedskew.core.errors import FedskewError
from fedskew.core.files import read_text
from fedskew.core.registry import AtLeastOne
from fedskew.data.dataset import Features, Rows, Split
from fedskew.data.readers.arrays import Arrays
from fedskew.data.source import Source, TestShare, find, register

_FILES = {
    "editorial": "nytEditorialSnippets_GroundTruth.txt",
    "film": "movieReviewSnippets_GroundTruth.txt",
    "product": "amazonReviewSnippets_GroundTruth.txt",
    "tweet": "tweets_GroundTruth.txt",
}
_WORD = re.compile(r"[a-z']+|[!?]|[:;=][-']?[()dp]")


@register(
    "vader",
    Source(
        "MIT; Hutto, Gilbert ICWSM 2014",
        files=tuple(f"vader/{file}" for file in _FILES.values()),
        manual=(
            "download the source distribution of vaderSentiment 3.3.2 from https://pypi.org/project/vaderSentiment and "
            "put the four *_GroundTruth.txt files of its additional_resources into {root}/vader/"
        ),
    ),
)
def vader(
    *, words: Annotated[int, AtLeastOne] = 1024, test: TestShare = 0.2, split_seed: int = 0
) -> Arrays:
    """Positive or negative sentences, 23,703 of films, editorials, tweets and products, with the kind as group.

    The mean of 20 ratings is above 0 or not. Words are hashed: a feature is how often the words of one hash occur,
    divided by the length of the vector.

    Args:
        words: features that words are hashed to
        test: share of the sentences held out for test, in proportion within every class and kind
        split_seed: seed of the split
    """
    x = []
    y = []
    group = []
    for number, file in enumerate(_FILES.values()):
        sentences, ratings = _read(find("vader", f"vader/{file}"))
        for sentence in sentences:
            x.append(hashed(sentence, words))
        y += [int(rating > 0) for rating in ratings]
        group += [number] * len(sentences)
    rows = Rows(np.stack(x), np.array(y, dtype=np.int64), np.array(group, dtype=np.int64))
    return Arrays(
        train=rows,
        test=Split("test", test, split_seed),
        classes=("negative", "positive"),
        groups=tuple(_FILES),
    )


def _read(path: Path) -> tuple[list[str], list[float]]:
    """Return sentences and ratings in lines "id, rating, sentence" that are divided by tabs."""
    sentences = []
    ratings = []
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        cells = line.split("\t")
        try:
            ratings.append(float(cells[1]))
            sentences.append(cells[2])
        except (IndexError, ValueError):
            raise FedskewError(
                f"{path}: line {number} is not an id, a rating and a sentence, divided by tabs"
            ) from None
    if not sentences:
        raise FedskewError(f"{path} is empty: get it again")
    return sentences, ratings


def hashed(sentence: str, words: int) -> Features:
    """Return how often the words of each hash occur, as a vector of length 1.

    >>> round(float(hashed("good, good film!", 1024).max()), 2)
    0.82
    """
    counts: Features = np.zeros(words, dtype=np.float32)
    for word in _WORD.findall(sentence.lower()):
        counts[crc32(word.encode()) % words] += 1
    length = np.linalg.norm(counts)
    if length:
        counts /= length
    return counts
