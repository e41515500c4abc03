"""A linear classifier on frozen vectors of WordLlama beside hashed words, on VADER's sentences of four kinds.

It needs two packages that are no dependency of fedskew, ``pip install --no-deps tokenizers wordllama``, and the data
set vader. Five seeds divide the sentences anew. The learning rate of each is the best of eight by the validation rows
of a sixth seed.
"""

import sys
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

import fedskew as fs
from benchmarks.paired import interval
from fedskew.data.source import find

KINDS = {
    "editorial": "nytEditorialSnippets_GroundTruth.txt",
    "film": "movieReviewSnippets_GroundTruth.txt",
    "product": "amazonReviewSnippets_GroundTruth.txt",
    "tweet": "tweets_GroundTruth.txt",
}
LENGTH = 48  # tokens of a row
PADDING = 0
SEEDS = range(5)
TUNED_ON = 5
RATES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
SETTINGS = {"rounds": 30, "batch_size": 32, "device": "cpu", "threads": 1, "folder": False}


def main() -> None:
    """Print the table of docs/pretrained.md."""
    found = find_spec("wordllama")
    if find_spec("tokenizers") is None or found is None or found.origin is None:
        sys.exit(__doc__)
    package = Path(found.origin).parent
    weights = package / "weights" / "l2_supercat_256.safetensors"
    with TemporaryDirectory() as folder:
        texts = Path(folder) / "vader.npz"
        tokenizer = package / "tokenizers" / "l2_supercat_tokenizer_config.json"
        np.savez(texts, **_sentences(tokenizer))
        _print_table(
            {
                "`logreg` on 1,024 hashed words": ("vader", "logreg"),
                "`text-linear` on 32,000 frozen vectors": (
                    f"{texts}:standardize=false",
                    f"text-linear:embeddings={weights},padding={PADDING}",
                ),
            }
        )


def _print_table(models: dict[str, tuple[str, str]]) -> None:
    """Print a line for each pair of data and model."""
    print("| model | lr | trained | frozen | kB a client sends a round | test accuracy, % |")
    print("|---|---|---|---|---|---|")
    for title, (data, model) in models.items():
        scores = {}
        for rate in RATES:
            run = _trained(data, model, TUNED_ON, rate, validation=0.2)
            scores[rate] = run.rounds["validation_accuracy"].iloc[-1]
        best = max(scores, key=scores.__getitem__)
        runs = [_trained(data, model, seed, best) for seed in SEEDS]
        accuracy = np.array([100 * run.summary["test_accuracy_last"] for run in runs])
        summary = runs[0].summary
        sent = summary["bytes_up"] / SETTINGS["rounds"] / len(KINDS) / 1e3
        cells = [title, f"{best:g}", f"{summary['parameters']:,}"]
        cells += [f"{summary.get('frozen_parameters', 0):,}", f"{sent:.1f}", interval(accuracy)]
        print(f"| {' | '.join(cells)} |", flush=True)


def _trained(data: str, model: str, seed: int, rate: float, validation: float = 0.0) -> fs.Run:
    rows = fs.load(data, split_seed=seed, validation=validation, seed=seed)
    fed = fs.split(rows, "natural", seed=seed)
    return fs.train(fed, model, lr=rate, seed=seed, **SETTINGS)


def _sentences(tokenizer: Path) -> dict[str, NDArray[np.int64]]:
    """Return the tokens, the label and the kind of every sentence."""
    from tokenizers import Tokenizer

    reader = Tokenizer.from_file(str(tokenizer))
    rows = []
    labels = []
    kinds = []
    for number, file in enumerate(KINDS.values()):
        for line in find("vader", f"vader/{file}").read_text(encoding="utf-8").splitlines():
            _, rating, sentence = line.split("\t")[:3]
            ids = reader.encode(sentence, add_special_tokens=False).ids[:LENGTH]
            rows.append(ids + [PADDING] * (LENGTH - len(ids)))
            labels.append(int(float(rating) > 0))
            kinds.append(number)
    return {"x": np.array(rows), "y": np.array(labels), "group": np.array(kinds)}
