"""The definitions of the numbers of a measurement, in sentences that can be quoted."""

from collections.abc import Iterator, Sequence

from fedskew.heterogeneity.coded import STEPS
from fedskew.heterogeneity.pairs import Pairs
from fedskew.heterogeneity.regions import LLOYD_STEPS, REGIONS, SAMPLE
from fedskew.heterogeneity.study import Study


def definition(study: Study, on_steps: int, missing: Sequence[str], chance: bool) -> Iterator[str]:
    """Return the definitions of the distances and samples; ``on_steps`` features were measured by equal steps."""
    options = study.options
    columns = study.columns
    pairs = study.pairs
    few = study.few_pairs
    looked = len(columns.chosen)
    varying = columns.varying
    yield (
        "hellinger: sqrt(sum (sqrt p - sqrt q)^2 / 2); jensen-shannon: square root of the divergence in bits; "
        "total-variation: sum |p - q| / 2, which is 1-Wasserstein between categories that are all 1 apart; "
        "wasserstein: 1-Wasserstein, the area between the cumulative distributions."
    )
    if study.classes == 0:
        yield "labels: not measured, as the targets are not classes, and no bins stand in for them."
    else:
        yield _of_labels(study)
    yield _of_features(study, on_steps)
    if options.convention == "fedartml":
        yield (
            "mean, by chance: as in FedArtML 0.1.34: for every feature the square root of the mean squared hellinger, "
            "and the square root of the mean wasserstein, 1 at most; then the mean over features."
        )
        yield (
            "wasserstein, unlike above: of the two lists of shares, as if these were samples; which class or bin a "
            "share belongs to does not enter, so that clients with one class each are at distance 0."
        )
    yield f"mean, worst: over {_drawn(pairs)} with equal weights. pooled: to all rows, weighted by the clients' rows."
    if study.classes:
        yield (
            f"features given label: mean over the labels of which both clients have {options.min_rows} rows. "
            f"labels given features: mean over the regions where both have {options.min_rows} rows, {REGIONS} regions "
            f"by {LLOYD_STEPS} k-means steps on at most {SAMPLE} rows. Both over {_drawn(few)}."
        )
    if not (pairs.exact and few.exact and looked == varying):
        yield "standard error: of the mean, for the drawn pairs and features; a worst value is that of the drawn ones."
    if chance:
        yield "by chance: the mean for rows assigned at random to the same sizes, which is not 0 for small samples."
    if study.classes:
        for view in missing:
            yield f"{view}: not measured, as no two clients have {options.min_rows} rows to compare, or nothing varies."


def _of_features(study: Study, on_steps: int) -> str:
    looked = len(study.columns.chosen)
    varying = study.columns.varying
    which = f"{looked} random ones of"
    if looked == varying:
        which = "all"
    steps = ""
    if on_steps:
        steps = f", in {on_steps} on {STEPS} steps (never above the exact value, at most {1 / STEPS:.4f} below)"
    return (
        f"features: {which} {varying} that are not constant, each scaled so that all rows span [0, 1]; "
        f"{study.options.bins} bins of equal width; wasserstein of the values themselves, exact in "
        f"{looked - on_steps} features{steps}. A pair's distance is the mean over features."
    )


def _of_labels(study: Study) -> str:
    what = "bins that stand in for classes"
    if study.rows.bins is None:
        what = "classes"
    return (
        f"labels: shares of the {study.classes} {what}; for wasserstein class k of K stands at k / (K - 1), so that it "
        "alone depends on the order of the classes. Label entropy is divided by log K."
    )


def _drawn(pairs: Pairs) -> str:
    if pairs.exact:
        return f"all {pairs.total} pairs of clients"
    return f"{len(pairs.first)} of {pairs.total} pairs of clients"
