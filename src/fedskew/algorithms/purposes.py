"""What methods and additions are for: the groups in which they are listed."""

from collections.abc import Iterable

_OTHERS = "others"
PURPOSES = {
    "bounds: what no federation and full access to all rows give": "central local",
    "one model for all, from clients that train apart": (
        "fedavg fedprox fedprox-layers scaffold feddyn fednova moon fedntd fedsam fedlc fedrs fedpbs"
    ),
    "likewise, by weights of clients and by steps of the server": (
        "afl-cp fedbs fedga q-fedavg fedavgm fedadam fedadagrad fedyogi fedexp"
    ),
    "likewise, without waiting for slow clients": "fedasync fedbuff",
    "one model for all, trained on the samples of all clients in turn or in step": (
        "sfl stratify-batch stratify-single stratify-hybrid"
    ),
    "BatchNorm across clients": "fedbn mfedbn fedtan",
    "a model for each client": (
        "ditto apfl pfedme per-fedavg fedper fedrep lg-fedavg fedbabu fedrod fedala fedproto fedpac fedamp fedfomo"
    ),
    "a model for each cluster of clients": "ifca cfl",
    "no server: clients exchange models with neighbours": "d-psgd gossip",
    "additions: a better model at the end, or better clients per round": (
        "finetune ccvr power-of-choice norm-test stratify-rounds"
    ),
    "additions: servers between clients and the cloud": "hierarchical",
    "additions: low-rank adapters in place of the whole model": (
        "lora ffa-lora flora fedex-lora fedsa-lora fed-sb"
    ),
    "additions: fewer bytes": "topk quantize",
    "additions: privacy, hostile clients and rules against them": (
        "dp attack clip krum median trimmed-mean"
    ),
}


def by_purpose(names: Iterable[str]) -> dict[str, list[str]]:
    """Return methods by what they are for, in the order of the groups; unknown ones are others.

    >>> by_purpose(["mine", "ifca", "cfl"])
    {'a model for each cluster of clients': ['ifca', 'cfl'], 'others': ['mine']}
    """
    left = list(names)
    groups: dict[str, list[str]] = {}
    for purpose, members in PURPOSES.items():
        here = [name for name in members.split() if name in left]
        if here:
            groups[purpose] = here
    grouped = {name for members in groups.values() for name in members}
    others = [name for name in left if name not in grouped]
    if others:
        groups[_OTHERS] = others
    return groups
