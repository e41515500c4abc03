"""The classifier two-sample test (Lopez-Paz and Oquab 2017): can a classifier tell a client's rows from the others'?"""

import numpy as np

from fedskew.core.streams import Floats, Ints, Stream, substream
from fedskew.heterogeneity.coded import Columns
from fedskew.heterogeneity.gaps import TableGaps
from fedskew.tasks.scores import auc

FOLDS = 5
LEAST_ROWS = 2 * FOLDS  # of a client that is tested
MOST_ROWS = 1_000  # of the client, and of the others, that are drawn
MOST_CLIENTS = 20  # that are tested, at even steps
MOST_FEATURES = 64  # that the classifier sees, drawn at random
TREES = 50


def clients_to_test(clients: Ints, sizes: Ints) -> Ints:
    """Return which of these clients are tested: those with enough rows on both sides, at even steps if many."""
    enough = clients[(sizes >= LEAST_ROWS)[clients] & (sizes.sum() - sizes >= LEAST_ROWS)[clients]]
    few: Ints = enough[:: max(-(-len(enough) // MOST_CLIENTS), 1)]
    return few


def two_sample_auc(
    columns: Columns, offsets: Ints, client: int, stream: Stream, gaps: TableGaps | None = None
) -> tuple[float, int, int]:
    """Return the AUC with which extremely randomised trees tell a client's rows from those of all others.

    Every row is scored by trees that were grown without its fold of five. 0.5 is chance; 1 is a client whose every row
    can be told from the others' by its features. It comes with the number of rows of either kind. Entries that are
    filled in are drawn anew from those that are there, and a column that one kind lacks is not looked at; if that
    leaves none, the AUC is 0.5.
    """
    from sklearn.ensemble import ExtraTreesClassifier
    from sklearn.model_selection import StratifiedKFold

    begin = int(offsets[client])
    end = int(offsets[client + 1])
    others = np.concatenate([np.arange(begin), np.arange(end, int(offsets[-1]))])
    mine = _some(np.arange(begin, end), MOST_ROWS, substream(stream, client, 0))
    rest = _some(others, MOST_ROWS, substream(stream, client, 1))
    known = np.arange(len(columns.chosen))
    if gaps is not None:
        known = gaps.known(columns.chosen, mine, rest)
    if not len(known):
        return 0.5, len(mine), len(rest)
    chosen = _some(known, MOST_FEATURES, substream(stream, client, 2))
    rows = np.concatenate([mine, rest])
    x = columns.scaled(chosen, rows).T.astype(np.float32)
    if gaps is not None:
        x = gaps.redrawn(x, columns.chosen[chosen], rows, substream(stream, client, 4))
    positive = np.arange(len(x)) < len(mine)
    seed = int(substream(stream, client, 3).sample(2**31 - 1, 1)[0])
    scores: Floats = np.empty(len(x))
    for fold, (kept, left) in enumerate(
        StratifiedKFold(FOLDS, shuffle=True, random_state=seed).split(x, positive)
    ):
        trees = ExtraTreesClassifier(TREES, min_samples_leaf=3, random_state=seed + fold, n_jobs=1)
        scores[left] = trees.fit(x[kept], positive[kept]).predict_proba(x[left])[:, 1]
    return auc(scores, positive), len(mine), len(rest)


def _some(of: Ints, most: int, stream: Stream) -> Ints:
    if len(of) <= most:
        return of
    return of[np.sort(stream.sample(len(of), most))]
