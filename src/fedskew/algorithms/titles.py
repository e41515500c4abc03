"""The names of methods as papers print them, for figures and tables that go into one."""

from collections.abc import Mapping

_TITLES: Mapping[str, str] = {
    "afl-cp": "AFL-CP",
    "apfl": "APFL",
    "attack": "attack",
    "ccvr": "CCVR",
    "central": "central",
    "cfl": "CFL",
    "clip": "clipping",
    "d-psgd": "D-PSGD",
    "ditto": "Ditto",
    "dp": "DP",
    "fed-sb": "Fed-SB",
    "fedadagrad": "FedAdagrad",
    "fedadam": "FedAdam",
    "fedala": "FedALA",
    "fedamp": "FedAMP",
    "fedasync": "FedAsync",
    "fedavg": "FedAvg",
    "fedavgm": "FedAvgM",
    "fedbabu": "FedBABU",
    "fedbn": "FedBN",
    "fedbs": "FedBS",
    "fedbuff": "FedBuff",
    "feddyn": "FedDyn",
    "fedex-lora": "FedEx-LoRA",
    "fedexp": "FedExP",
    "fedfomo": "FedFomo",
    "fedga": "FedGA",
    "fedlc": "FedLC",
    "fednova": "FedNova",
    "fedntd": "FedNTD",
    "fedpac": "FedPAC",
    "fedpbs": "FedPBS",
    "fedper": "FedPer",
    "fedproto": "FedProto",
    "fedprox": "FedProx",
    "fedprox-layers": "FedProx per layer",
    "fedrep": "FedRep",
    "fedrod": "FedRoD",
    "fedrs": "FedRS",
    "fedsa-lora": "FedSA-LoRA",
    "fedsam": "FedSAM",
    "fedtan": "FedTAN",
    "fedyogi": "FedYogi",
    "ffa-lora": "FFA-LoRA",
    "finetune": "fine-tuning",
    "flora": "FLoRA",
    "gossip": "gossip",
    "hierarchical": "HierFAVG",
    "ifca": "IFCA",
    "krum": "Krum",
    "lg-fedavg": "LG-FedAvg",
    "local": "local",
    "lora": "LoRA",
    "median": "median",
    "mfedbn": "MFedBN",
    "moon": "MOON",
    "norm-test": "norm test",
    "per-fedavg": "Per-FedAvg",
    "pfedme": "pFedMe",
    "power-of-choice": "power of choice",
    "q-fedavg": "q-FedAvg",
    "quantize": "quantisation",
    "scaffold": "SCAFFOLD",
    "sfl": "SFL",
    "stratify-batch": "Stratify batch",
    "stratify-hybrid": "Stratify hybrid",
    "stratify-rounds": "Stratify rounds",
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
