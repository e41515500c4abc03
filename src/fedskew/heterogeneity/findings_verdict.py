"""The verdict on a federation in words: what kind of skew it has, how strong, at which clients and columns."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from fedskew.core.streams import Ints
from fedskew.heterogeneity.contrasts import STRENGTHS, Contrast, Strength
from fedskew.heterogeneity.effects import Effect, with_interval

if TYPE_CHECKING:
    from fedskew.heterogeneity.findings import ClientFindings

AUCS = (0.556, 0.638, 0.714)  # of normal distributions that are 0.2, 0.5 and 0.8 deviations apart
# Mean Hellinger distance of labels given features, above that by chance
CONCEPT = (0.05, 0.15, 0.3)
_NAMED = 3  # clients or columns in one sentence


class _Judged(NamedTuple):
    """How strong a skew is, and a sentence about it."""

    strength: Strength
    sentence: str

    @property
    def found(self) -> bool:
        return self.strength != "no"


def verdict_of(
    sizes: Ints,
    names: Sequence[str],
    clients: "Sequence[ClientFindings]",
    columns: Sequence[Contrast],
    gaps: Sequence[Contrast],
    label_v: Effect | None,
    given_features: tuple[float, float],
) -> list[str]:
    """Return a sentence about the kind of skew, and one each about labels, features, gaps, a classifier and sizes."""
    labels = _of_labels(clients, label_v)
    features = _of_features(names, columns)
    told = _of_classifier(clients)
    explained = labels.found or features.found or told.found
    concept = _of_concept(given_features, explained)
    missing = _of_gaps(names, gaps)
    kinds = _kinds(labels, features, told, concept)
    if missing:
        kinds.append("missing entries that differ")
    sentences = [_whole(kinds, sizes, len(clients)), labels.sentence, features.sentence]
    if missing:
        sentences.append(missing)
    if told.found and labels.found:
        sentences.append(f"{told.sentence} (a skew of labels shows there too)")
    elif told.sentence:
        sentences.append(told.sentence)
    if concept.found:
        sentences.append(concept.sentence)
    return [*sentences, _of_sizes(sizes, names)]


def _kinds(labels: _Judged, features: _Judged, told: _Judged, concept: _Judged) -> list[str]:
    """Return the kinds of skew; what a classifier tells, and concepts, count only where nothing explains them."""
    kinds = []
    if labels.found:
        kinds.append(f"{labels.strength} label skew")
    if features.found:
        kinds.append(f"{features.strength} feature shift")
    if not kinds and told.found:
        kinds.append(f"{told.strength} feature shift in several columns together")
    if not kinds and concept.found:
        kinds.append(f"{concept.strength} concept shift")
    return kinds


def _whole(kinds: Sequence[str], sizes: Ints, looked_at: int) -> str:
    """Return the first sentence, which names all kinds of skew."""
    named = list(kinds)
    ratio = float(sizes.max() / sizes.min())
    if ratio >= 2:
        named.append(f"sizes that differ {ratio:.3g} times")
    sentence = "verdict: no difference between the clients beyond chance"
    if named:
        sentence = f"verdict: {', '.join(named)}"
    if looked_at < len(sizes):
        sentence += f" ({looked_at} of {len(sizes):,} clients looked at)"
    return sentence


def _of_sizes(sizes: Ints, names: Sequence[str]) -> str:
    ratio = float(sizes.max() / sizes.min())
    few = int(sizes.argmin())
    many = int(sizes.argmax())
    return f"sizes: from {sizes[few]:,} rows ({names[few]}) to {sizes[many]:,} ({names[many]}), x {ratio:.3g}"


def _of_concept(given_features: tuple[float, float], explained: bool) -> _Judged:
    measured, by_chance = given_features
    why = "the same features have other labels at other clients"
    if explained:
        why = "the skews above may explain it"
    return _Judged(
        _strength(measured - by_chance, CONCEPT),
        f"labels given features: distance {measured:.2f}, by chance {by_chance:.2f}: {why}",
    )


def _strength(value: float, limits: Sequence[float]) -> Strength:
    """Return how strong a value is called that reaches so many of the limits."""
    return STRENGTHS[sum(value >= limit for limit in limits)]


def _strongest(contrasts: Sequence[Contrast]) -> Strength:
    return max((one.strength for one in contrasts), key=STRENGTHS.index, default="no")


def _of_labels(clients: "Sequence[ClientFindings]", label_v: Effect | None) -> _Judged:
    over_all = ""
    if label_v is not None:
        over_all = f"; over all clients V = {with_interval(label_v)}"
    clear = [one for one in clients if _label_words(one)]
    if not clear:
        return _Judged("no", f"labels: no clear difference{over_all}")
    clear.sort(key=_by_label)
    strength = _strongest([one.label for one in clear if one.label])
    if strength == "no":
        strength = "weak"  # as classes are absent
    said = "; ".join(f"{one.name} {_label_words(one)}" for one in clear[:_NAMED])
    if len(clear) > _NAMED:
        said += f" and {len(clear) - _NAMED} more clients"
    return _Judged(strength, f"labels: {strength} skew: {said}{over_all}")


def _by_label(one: "ClientFindings") -> tuple[float, int]:
    """Return what puts the client first whose labels differ most."""
    if one.label is None:
        return 0.0, one.client
    return -one.label.size, one.client


def _label_words(one: "ClientFindings") -> str:
    """Return how a client's labels differ from the others'; nothing if not clearly."""
    words = []
    if one.label and one.label.strength != "no":
        words.append(f"is {one.label.words()}")
    if one.absent:
        absent = ", ".join(map(repr, one.absent[:_NAMED]))
        if len(one.absent) > _NAMED:
            absent += f" and {len(one.absent) - _NAMED} more"
        words.append(f"has no {absent}")
    return ", ".join(words)


def _of_features(names: Sequence[str], columns: Sequence[Contrast]) -> _Judged:
    clear = [one for one in columns if one.strength != "no"]
    if not clear:
        return _Judged("no", f"features: no clear difference in any of {len(columns)} columns")
    said = []
    for one in clear[:_NAMED]:
        said.append(f"{one.column} of {names[one.client]} is {one.words()}")
    if len(clear) > _NAMED:
        said.append(f"{len(clear) - _NAMED} more columns differ")
    strength = _strongest(clear)
    return _Judged(strength, f"features: {strength} shift: {'; '.join(said)}")


def _of_gaps(names: Sequence[str], gaps: Sequence[Contrast]) -> str:
    """Return where entries are missing more or less often than elsewhere; nothing if not clearly."""
    said = []
    for one in gaps:
        if one.strength != "no":
            said.append(
                f"{one.column} of {names[one.client]} in {one.here:.1%} of the rows against {one.others:.1%}"
            )
    if not said:
        return ""
    sentence = f"missing: {'; '.join(said[:_NAMED])}"
    if len(said) > _NAMED:
        sentence += f"; {len(said) - _NAMED} more columns"
    return sentence


def _of_classifier(clients: "Sequence[ClientFindings]") -> _Judged:
    """Judge by how well a classifier tells rows from the others'; the sentence is empty where none was tried."""
    tested = [one for one in clients if one.auc is not None]
    if not tested:
        return _Judged("no", "")
    told = [one for one in tested if one.surely >= AUCS[0]]
    if not told:
        return _Judged(
            "no",
            f"a classifier cannot tell the rows of any of {len(tested)} clients from the others'",
        )
    told.sort(key=lambda one: -one.surely)
    strength = _strength(told[0].surely, AUCS)
    first = [one for one in told if _strength(one.surely, AUCS) == strength]
    named = []
    for one in first[:_NAMED]:
        if one.auc is not None:
            named.append(f"{one.name} (AUC {with_interval(one.auc)})")
    said = ", ".join(named)
    if len(first) > _NAMED:
        said += f" and {len(first) - _NAMED} more"
    if len(told) > len(first):
        said += f"; of {len(told) - len(first)} more less well"
    if len(tested) > len(told):
        said += f"; of {len(tested) - len(told)} not at all"
    return _Judged(strength, f"a classifier tells rows from the others' of {said}")
