"""The names of methods as papers print them, for figures and tables that go into one."""

from collections.abc import Mapping

_TITLES: Mapping[str, str] = {
    "afl-cp": "AFL-CP",
    "attack": "attack",
    "ccvr": "CCVR",
    "central": "central",
    "clip": "clipping",
    "ditto": "Ditto",
    "dp": "DP",
    "fedadagrad": "FedAdagrad",
    "fedadam": "FedAdam",
    "fedasync": "FedAsync",
    "fedavg": "FedAvg",
    "fedavgm": "FedAvgM",
    "fedbn": "FedBN",
    "fedbs": "FedBS",
    "fedbuff": "FedBuff",
    "feddyn": "FedDyn",
    "fedga": "FedGA",
    "fedlc": "FedLC",
    "fednova": "FedNova",
    "fedntd": "FedNTD",
    "fedpbs": "FedPBS",
    "fedper": "FedPer",
    "fedprox": "FedProx",
    "fedprox-layers": "FedProx per layer",
    "fedrep": "FedRep",
    "fedsam": "FedSAM",
    "fedtan": "FedTAN",
    "fedyogi": "FedYogi",
    "krum": "Krum",
    "lg-fedavg": "LG-FedAvg",
    "local": "local",
    "median": "median",
    "mfedbn": "MFedBN",
    "moon": "MOON",
    "q-fedavg": "q-FedAvg",
    "quantize": "quantisation",
    "scaffold": "SCAFFOLD",
    "sfl": "SFL",
    "stratify-batch": "Stratify batch",
    "stratify-hybrid": "Stratify hybrid",
    "stratify-single": "Stratify single",
    "topk": "top-k",
    "trimmed-mean": "trimmed mean",
}


def title_of(label: str) -> str:
    """Return a label with the names of methods as papers print them; options and unknown names stay as they are.

    >>> title_of("lg-fedavg"), title_of("fedprox:mu=0.1 + krum:attackers=2"), title_of("mine, lr=0.1")
    ('LG-FedAvg', 'FedProx:mu=0.1 + Krum:attackers=2', 'mine, lr=0.1')
    """
    parts = []
    for part in label.split(" + "):
        name, mark, options = part, "", ""
        for sign in (":", ", "):
            if sign in name:
                name, mark, rest = name.partition(sign)
                options = mark + rest + options
        parts.append(_TITLES.get(name, name) + options)
    return " + ".join(parts)
