"""The classifier two-sample test (Lopez-Paz and Oquab 2017): can a classifier tell a client's rows from the others'?"""

import numpy as np
from numpy.typing import NDArray

from fedskew.core.streams import Floats, Ints, Stream, substream
from fedskew.heterogeneity.coded import Columns
from fedskew.heterogeneity.gaps import TableGaps
from fedskew.tasks.ranks import ranked

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
        scores[left] = _scored(x[kept], positive[kept], x[left], seed + fold)
    return ranked(scores, positive).auc, len(mine), len(rest)


def _scored(x: Floats, positive: NDArray[np.bool_], left: Floats, seed: int) -> Floats:
    """Return the share of positive rows that trees, grown on ``x``, find where each row of ``left`` falls.

    These are the trees and the mean of scikit-learn's ``ExtraTreesClassifier``, bit for bit. It would check options and
    rows anew for each of its trees, which takes as long again as to grow small ones.
    """
    from sklearn import config_context
    from sklearn.tree import ExtraTreeClassifier

    seeds = np.random.RandomState(seed)
    total = np.zeros((len(left), 2))
    with config_context(skip_parameter_validation=True, assume_finite=True):
        for _ in range(TREES):
            tree = ExtraTreeClassifier(min_samples_leaf=3, random_state=seeds.randint(2**31 - 1))
            tree.fit(x, positive, check_input=False)
            total += tree.predict_proba(left, check_input=False)
    shares: Floats = total[:, 1] / TREES
    return shares


def _some(of: Ints, most: int, stream: Stream) -> Ints:
    if len(of) <= most:
        return of
    return of[np.sort(stream.sample(len(of), most))]
