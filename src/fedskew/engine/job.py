"""What stays the same over all rounds of a run, and the inputs and outputs of an engine."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor, nn

from fedskew.algorithms.contract import Algorithm, Report, overridden
from fedskew.algorithms.initial_weights import InitialWeights
from fedskew.algorithms.selection import Probe
from fedskew.algorithms.topologies import hides_labels
from fedskew.batchnorm.frozen import freeze_batch_norms
from fedskew.batchnorm.masked import check_layers
from fedskew.batchnorm.policy import BatchNormPolicy
from fedskew.core.config import Settings
from fedskew.core.errors import FedskewError
from fedskew.core.streams import Floats, Ints
from fedskew.core.trees import Tensors, Tree
from fedskew.data.dataset import Rows
from fedskew.data.partition import Partition
from fedskew.data.targets import Targets
from fedskew.engine.augment import Augment, check_images
from fedskew.engine.device import Precision, pick_device
from fedskew.engine.input_rows import InputRows, Inputs, inputs_of
from fedskew.engine.optimizer import Optimizer
from fedskew.engine.plan import Plan
from fedskew.engine.sharing import WHOLE
from fedskew.models.layout import Layout, head_module, layout
from fedskew.models.low_rank import names_set_by_servers
from fedskew.models.parameters import copied_model, trainable
from fedskew.sample_schedules.sample_schedule import SampleSchedule
from fedskew.tasks.classification import Classification
from fedskew.tasks.task import Task

# How the parts of what a client keeps are named
STATE, OPTIMIZER, LOCAL = "state.", "optimizer.", "local"
ANSWER = (
    "answer."  # of what the server sends a client alone, which is with what it keeps during a round
)
RECEIVED = (
    "answer.model"  # of that, the weights that the client receives in place of the global ones
)
CANDIDATES = "candidates"  # the part of a broadcast or an answer with models to choose from
CHOSEN = "chosen_model"  # in a report, the number of the one with the least loss
CANDIDATE = "candidate"  # in what ``client_model`` sees, the one of them that the client chooses
SETTING_POLICY = {
    "aggregate": BatchNormPolicy(),
    "local": BatchNormPolicy(local="everything"),
    # Andreux et al. 2020: scale and shift are averaged, statistics are not
    "silo": BatchNormPolicy(local="statistics"),
    "frozen": BatchNormPolicy(),  # the layers themselves are others
}


def shared_model(kept: Collection[str]) -> str:
    """Return ``whole``, or why clients share no whole model, from the names of the tensors that each of them keeps.

    Evaluation, predictions and comparisons go by this: a model with parts that nobody trained for all has no score.

    >>> shared_model([]), shared_model(["head.weight", "head.bias"])
    ('whole', 'every client keeps a part of the model (head.bias, head.weight), and they share no whole one')
    """
    if not kept:
        return WHOLE
    names = ", ".join(sorted(kept)[:3])
    if len(kept) > 3:
        names += ", …"
    return f"every client keeps a part of the model ({names}), and they share no whole one"


def parts(kept: Tree, prefix: str) -> Tree:
    """Return the parts of ``kept`` under a prefix, by their plain names."""
    under_prefix: Tree = {}
    for name, tensors in kept.items():
        if name.startswith(prefix):
            under_prefix[name.removeprefix(prefix)] = tensors
    return under_prefix


def prefixed(tree: Tree, prefix: str) -> Tree:
    """Return the tree with a prefix before the name of every part: the inverse of ``parts``."""
    return {prefix + name: tensors for name, tensors in tree.items()}


@dataclass(frozen=True)
class Job:
    """The model, the data on its device, the task, the method and the local optimiser.

    The data may be that of all clients, or of one client only: then ``first`` is that client's number and the
    partition has one client.
    """

    model: nn.Module
    x: Inputs
    y: Tensor
    partition: Partition
    algorithm: Algorithm
    optimizer: Optimizer
    local_names: frozenset[str]  # names of tensors that never leave a client
    seed: int
    first: int = 0  # number of the partition's first client
    # Names of tensors that clients receive and never send
    frozen_names: frozenset[str] = frozenset()
    secure: bool = False  # a synchronous server learns only sums over the clients of a step
    task: Task = field(default_factory=Classification)
    classes: int = 0  # how many classes the data has
    augment: Augment = "none"  # what happens to the images of training batches
    precision: Precision = "float32"  # of products in layers during training

    @property
    def unsent(self) -> frozenset[str]:
        """Return the names of the tensors that no client sends."""
        return self.local_names | self.frozen_names

    @cached_property
    def sent(self) -> frozenset[str]:
        """Return the names of the weights that clients send."""
        return frozenset(trainable(self.model)) - self.unsent

    @cached_property
    def feature_shape(self) -> tuple[int, int]:
        """Return the number of classes, and how many inputs the model's head has."""
        weights = initial_weights(trainable(self.model), self.unsent, self.layout)
        return self.classes, weights.head_shape[1]

    @property
    def shared_model(self) -> str:
        """Return ``whole``, or why clients share no whole model."""
        return self.algorithm.no_shared_model or shared_model(self.local_names)

    @property
    def personalised(self) -> bool:
        """Return whether clients use models of their own: they keep parts, train one, or the method makes one."""
        if self.local_names or self.algorithm.personal_method is not None:
            return True
        if self.algorithm.adaptation is not None:
            return True
        return overridden(self.algorithm, "client_model")

    @cached_property
    def layout(self) -> Layout:
        """Return the layout of the model."""
        return layout(self.model)

    @cached_property
    def scalar(self) -> Tensor:
        """A zero in the precision of the run, on its device; the data may be whole numbers."""
        return next(iter(trainable(self.model).values())).detach().new_zeros(())

    @cached_property
    def rows_in_order(self) -> Tensor:
        """Return the row numbers of all clients, one client after the other, on the device of the data."""
        return torch.from_numpy(self.partition.rows).to(self.y.device)

    @cached_property
    def images_channels_last(self) -> Inputs:
        """Return the images as ``[row, height, width, channel]``, the layout that convolutions read fastest."""
        if isinstance(self.x, InputRows):
            return self.x.with_channels_last()
        return self.x.movedim(1, -1).contiguous()

    @cached_property
    def _labels(self) -> Targets:
        return self.y.cpu().numpy()

    def rows(self, clients: Ints, positions: Ints) -> Tensor:
        """Return row numbers of the data, on its device, for positions ``[..., client, slot]`` of these clients."""
        begins = self.partition.offsets[clients - self.first]
        rows = self.partition.rows[begins[:, None] + positions]
        return torch.from_numpy(rows).to(self.y.device)

    def class_counts(self, clients: Ints) -> Tensor:
        """Return how many rows of each class these clients have: client x class, in the precision of the data."""
        counts = self.partition.counts(self._labels, self.classes, clients - self.first)
        return torch.from_numpy(counts).to(self.scalar)


def make_job(
    model: nn.Module,
    rows: Rows,
    partition: Partition,
    algorithm: Algorithm,
    settings: Settings,
    first: int = 0,
    task: Task | None = None,
    classes: int = 0,
) -> Job:
    """Return a job for the device and the precision of the settings; the model that was passed in stays as it is."""
    check_layers(model)
    model = training_form(model, algorithm, settings)
    if "features" in algorithm.requires:
        head_module(model)  # raises an error for a model without a head
    device = pick_device(settings.device)
    dtype = getattr(torch, settings.dtype)
    names = layout(model)
    moving = {*trainable(model), *dict(model.named_buffers())}
    frozen = (algorithm.batchnorm.frozen_names(names) | names_set_by_servers(model)) & moving
    local = algorithm.local_names(names) | algorithm.batchnorm.local_names(names)
    local = (frozenset(local) | SETTING_POLICY[settings.norm].local_names(names)) & moving - frozen
    check_images(settings.augment, rows.x.shape[1:])
    optimizer = Optimizer(
        settings.optimizer,
        settings.momentum,
        settings.weight_decay,
        settings.nesterov,
        settings.clip_norm,
    )
    if settings.precision != "float32" and device.type == "cpu":
        raise FedskewError(
            f"precision={settings.precision} is for GPUs, and device={device}: leave it at float32"
        )
    if rows.y.dtype.kind == "f":
        targets = dtype
    else:
        targets = torch.from_numpy(rows.y[:0]).dtype
    x = inputs_of(model, rows.x, dtype, device)
    y = torch.from_numpy(rows.y).to(device, targets)
    return Job(
        model.to(device=device, dtype=dtype),
        x,
        y,
        partition,
        algorithm,
        optimizer,
        frozenset(local),
        settings.seed,
        first,
        frozenset(frozen),
        hides_labels(algorithm.topology(0)),
        task or Classification(),
        classes,
        settings.augment,
        settings.precision,
    )


def training_form(model: nn.Module, algorithm: Algorithm, settings: Settings) -> nn.Module:
    """Return a copy of a model as it is trained: with the method's adapters, and with BatchNorm that is frozen."""
    model = copied_model(model)
    if algorithm.adapters is not None:
        model = algorithm.adapters.applied(model, settings.seed)
    return freeze_batch_norms(model, every=settings.norm == "frozen")


def initial_weights(
    weights: Tensors, unsent: Collection[str], layout: Layout, clients: int = 0
) -> InitialWeights:
    """Return the weights of a model before the first round, as methods make states of them."""
    sent: Tensors = {}
    others: Tensors = {}
    for name, value in weights.items():
        if name in unsent:
            others[name] = value
        else:
            sent[name] = value
    return InitialWeights(sent, others, layout.head, clients)


def fresh_client(job: Job) -> Tree:
    """Return what a client keeps before its first round, made from the initial model."""
    params = trainable(job.model)
    buffers = dict(job.model.named_buffers())
    everything = {}
    for name, value in {**params, **buffers}.items():
        everything[name] = value.detach().clone()
    weights = {name: everything[name] for name in params}
    initial = initial_weights(weights, job.unsent, job.layout)
    tree = prefixed(job.algorithm.init_client_state(initial), STATE)
    if job.local_names:
        tree[LOCAL] = {name: everything[name] for name in sorted(job.local_names)}
    if "optimizer_state" in job.algorithm.requires:
        tree |= prefixed(job.optimizer.init(weights, stacked=False), OPTIMIZER)
    return tree


def model_in_use(algorithm: Algorithm, shared: Tensors, kept: Tree) -> Tensors:
    """Return the model that a client uses: what the method's ``client_model`` makes of what the client keeps.

    The state of the client's optimiser is no part of that.
    """
    seen: Tree = {}
    for part, tensors in kept.items():
        if not part.startswith(OPTIMIZER):
            seen[part] = tensors
    return algorithm.client_model(shared, seen)


@dataclass(frozen=True)
class Start:
    """The state from which a round's clients start: the global model, the broadcast, and what each client kept.

    ``kept`` is stacked in the order of the plan's clients: ``local`` (tensors of the model that never leave it),
    ``state.*`` (the parts of its client state) and ``optimizer.*`` (the parts of its optimiser's state); ``answer.*``
    is what the server sends each client alone.
    """

    params: Tensors
    buffers: Tensors
    server: Tree
    kept: Tree
    lr: float


def candidates_of(server: Tree, answer: Tree) -> Tensors:
    """Return the models that a client may choose from, beside the weights that it received, stacked."""
    return {**server, **answer}.get(CANDIDATES, {})


def number_of_candidates(candidates: Tensors) -> int:
    """Return from how many models a client chooses, the one that it received included."""
    return 1 + max(map(len, candidates.values()), default=0)


@dataclass(frozen=True)
class Updates:
    """The results of some of a round's clients; every tensor is stacked in the order of ``report.clients``."""

    report: Report
    payload: Tree  # what they send, unsent names excluded
    buffers: Tensors  # the buffers that they send, unsent names excluded
    kept: Tree  # what stays with them, as in Start
    # Weights after local training, and buffers that are in no other field, for evaluation; on a GPU they are valid
    # until the engine trains again.
    trained: Tensors = field(default_factory=dict)


@dataclass(frozen=True)
class ModelState:
    """One model that all clients train in turn or together, with the state of its optimiser."""

    params: Tensors
    buffers: Tensors
    optimizer: Tree
    lr: float
    round: int


@dataclass(frozen=True)
class ScheduleResult:
    """The model after a sample schedule, and the loss and score of every sample before the step that used it."""

    params: Tensors
    buffers: Tensors
    optimizer: Tree
    losses: Floats
    scores: Floats


class Engine(Protocol):
    """Runs the local training of a round; only engines know how clients are executed."""

    def train(self, job: Job, start: Start, plan: Plan) -> Iterator[Updates]:
        """Execute the plan and yield each client once, alone or in stacks.

        The order is the engine's, but must be the same every time: sums in another order differ in their last bits.
        """
        ...

    def run_schedule(
        self, job: Job, state: ModelState, schedule: SampleSchedule, reset_optimizer: bool
    ) -> ScheduleResult:
        """Train one model on a sample schedule; ``reset_optimizer`` resets the optimiser at the start of each visit."""
        ...

    def probe(
        self, job: Job, start: Start, plan: Plan, what: tuple[Probe, ...]
    ) -> dict[str, Floats]:
        """Return what each client measures on the first batch of its plan with its start model, in evaluation mode.

        The number of a client that does not answer is masked.
        """
        ...
