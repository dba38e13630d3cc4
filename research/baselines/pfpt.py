"""Probabilistic federated prompt tuning: the server matches clients' prompts into a pool instead of averaging them.

Weng et al., "Probabilistic Federated Prompt-Tuning with Non-IID and Imbalanced Data", NeurIPS 2024, sections 3.2 and
3.3. That every sample takes the nearest prompts of a pool is from Wang et al., "Learning to Prompt for Continual
Learning", CVPR 2022.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from scipy.optimize import linear_sum_assignment  # type: ignore[import-untyped]  # scipy has no types of its own
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.adam import adam

from fedstats_app.heads import LinearHead
from fedstats_app.training.local import ExtraLoss
from fedstats_app.training.model import TunedModel
from fedstats_app.training.samples import generator
from fedstats_app.training.training_options import LocalOptions
from research.baselines.mlp_head import federated_average
from research.baselines.prompts import Prompted, prompt_adam

# Keep the draws of nets and of origins apart from those of clients and batches.
_NETS, _ORIGINS = 0x3A7C4, 0x041614
_HIDDEN, _LOOPS = 128, 50
# torch's defaults of Adam.
_ADAM: dict[str, Any] = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0}
_ADAM |= {"amsgrad": False, "maximize": False, "foreach": False}


class PromptPool(Prompted):
    """A frozen network and a pool, of which each sample takes the prompts that point most as its own feature does.

    The query is the feature without prompts; prompts are their own keys. Samples choose alone, where the paper's code
    has one choice for a batch: predictions must not depend on what else is in it.

    Parameters
    ----------
    network : nn.Module
        As :class:`Prompted` takes it, with features of the prompts' length.
    prompts : Tensor
        (P, d) float32, the pool.
    tokens : int
        k, how many a sample takes; at most P.

    Attributes
    ----------
    similarity : Tensor
        Of the last batch: the mean over samples of the sum of their k cosines, a scalar with a gradient.

    Raises
    ------
    ValueError
        As :class:`Prompted`, or if the pool is smaller than k.
    """

    def __init__(self, network: nn.Module, prompts: Tensor, tokens: int) -> None:
        super().__init__(network, prompts)
        if not 1 <= tokens <= len(prompts):
            raise ValueError(f"tokens must lie in 1 to the {len(prompts)} prompts of the pool, got {tokens}")
        self.tokens, self.similarity = tokens, torch.zeros(())

    def forward(self, inputs: Tensor) -> Tensor:
        """Return features (B, d)."""
        with torch.no_grad():
            queries = F.normalize(self.network(inputs), dim=1)
        cosines, chosen = (queries @ F.normalize(self.prompts, dim=1).T).topk(self.tokens, dim=1)
        self.similarity = cosines.sum(dim=1).mean()
        features: Tensor = self.network(inputs, self.prompts[chosen])
        return features


@dataclass(frozen=True, eq=False)
class Generation:
    """Model of how clients' prompts arise: each global prompt is kept by a coin, and seen with Gaussian noise.

    Attributes
    ----------
    prompts : Tensor
        (n, d), the global ones.
    layers : tuple of Tensor
        Weight and bias of the two layers of a net with ReLU, d to 128 to d, whose sigmoid is the noise's variance; and
        of one of d to 128 to 1, whose sigmoid is the probability of the coin.
    """

    prompts: Tensor
    layers: tuple[Tensor, ...]

    @classmethod
    def start(cls, prompts: Tensor, key: Sequence[int]) -> Generation:
        """Begin at prompts (n, d), with layers drawn as torch draws a linear one's: uniform in +-1 / sqrt(inputs)."""
        random, dim = generator(key, _NETS), prompts.shape[1]
        drawn = []
        for sizes in ((_HIDDEN, dim), (dim, _HIDDEN), (_HIDDEN, dim), (1, _HIDDEN)):
            bound = 1 / math.sqrt(sizes[1])
            drawn += [random.uniform(-bound, bound, shape) for shape in (sizes, sizes[:1])]
        return cls(prompts, tuple(torch.from_numpy(array) for array in drawn))

    def log_variances(self) -> Tensor:
        """Return (n, d): below 0, since the variances are sigmoids."""
        return F.logsigmoid(_net(self.prompts, *self.layers[:4]))

    def log_odds(self) -> Tensor:
        """Return (n,), of the coins."""
        return _net(self.prompts, *self.layers[4:]).squeeze(1)

    @torch.no_grad()
    def weights(self, local: Tensor) -> Tensor:
        """Return what it adds to the log-likelihood that prompts (m, d) come from each global one: (m, n)."""
        variances = self.log_variances()
        precisions = (-variances).exp()
        # The squares (w - phi)^2 / a, multiplied out: (m, n, d) numbers would not fit into a cache.
        squares = local.square() @ precisions.T - 2 * local @ (precisions * self.prompts).T
        own = (precisions * self.prompts.square() + variances + math.log(2 * math.pi)).sum(dim=1)
        return -0.5 * (squares + own) + self.log_odds()

    def log_likelihood(self, local: Tensor, origins: Tensor, num_clients: int) -> Tensor:
        """Return the scalar log-likelihood of all clients' prompts (m, d), of which each came from origins (m,)."""
        odds, variances = self.log_odds(), self.log_variances()[origins]
        squares = (local - self.prompts[origins]).square() * (-variances).exp()
        density = -0.5 * (squares + variances + math.log(2 * math.pi)).sum()
        return density + odds[origins].sum() + num_clients * F.logsigmoid(-odds).sum()


def _net(inputs: Tensor, weight: Tensor, bias: Tensor, last_weight: Tensor, last_bias: Tensor) -> Tensor:
    return F.linear(F.relu(F.linear(inputs, weight, bias)), last_weight, last_bias)


def best_origins(weights: Tensor) -> Tensor:
    """Return for each row of weights (m, n), m <= n, a column of its own, (m,) int64, with the largest sum of all."""
    _, columns = linear_sum_assignment(weights.detach().numpy(), maximize=True)
    return torch.from_numpy(columns)


def matched_prompts(clients: Mapping[int, Tensor], key: Sequence[int], *, loops: int = _LOOPS) -> Tensor:
    """Make a pool of the prompts that clients sent, those that match becoming one.

    The generation starts at all of them. Client by client its prompts are matched with the global ones, and Adam takes
    a step on the likelihood of all clients; prompts that no client uses are dropped. So a pool may shrink to the most
    that one client sent, or grow to the sum.

    Parameters
    ----------
    clients : mapping
        From a client's number to its prompts (m, d), floating and finite; those without any say nothing. Their order
        does not count, their numbers' does.
    key : sequence of int
        Each at least 0, say (seed, round): of the nets and the origins to begin with.
    loops : int
        Over all clients; 50 in the paper's code.

    Returns
    -------
    Tensor
        (P, d) in the clients' dtype.

    Raises
    ------
    ValueError
        If there are no prompts, or one is not finite.
    """
    sent = [clients[client] for client in sorted(clients) if len(clients[client])]
    if not sent:
        raise ValueError(f"clients: one must have a prompt, got {len(clients)} without")
    stacked = torch.cat(sent).double()
    if not bool(stacked.isfinite().all()):
        raise ValueError("clients: prompts must be finite")
    sizes = [len(prompts) for prompts in sent]
    random = generator(key, _ORIGINS)
    drawn = [torch.from_numpy(random.permutation(len(stacked))[:size]) for size in sizes]
    origins = torch.cat(drawn)
    generation = Generation.start(stacked.clone(), key)
    parameters = [parameter.requires_grad_() for parameter in (generation.prompts, *generation.layers)]
    moments = [(torch.zeros_like(parameter), torch.zeros_like(parameter), torch.zeros(())) for parameter in parameters]
    means, squares, steps = (list(states) for states in zip(*moments, strict=True))
    for _ in range(loops):
        for local, own in zip(torch.split(stacked, sizes), torch.split(origins, sizes), strict=True):
            own.copy_(best_origins(generation.weights(local)))
            loss = -generation.log_likelihood(stacked, origins, len(sizes))
            gradients = list(torch.autograd.grad(loss, parameters))
            with torch.no_grad():
                adam(parameters, gradients, means, squares, [], steps, **_ADAM)
    return generation.prompts.detach()[torch.unique(origins)].to(sent[0].dtype)


def pool_model(
    head: LinearHead, network: nn.Module, prompts: Tensor, tokens: int, *, temperature: float = 1.0
) -> TunedModel:
    """Return a model of which a pool of prompts (P, d), k = tokens for each sample, and the head's weight are trained.

    The bias stays, so that bytes are those of FedCOF's formula. Errors are those of :class:`PromptPool`.
    """
    # Training changes the prompts in place.
    own = prompts.clone()
    pool = PromptPool(network, own, tokens)
    model = TunedModel(head, backbone=pool, tune="full", tune_bias=False, temperature=temperature)
    model.get_submodule("backbone.network").requires_grad_(False)
    return model


def pool_of(model: TunedModel) -> PromptPool:
    """Return the pool of a :func:`pool_model`; a TypeError says if a model has none."""
    pool = model.get_submodule("backbone")
    if not isinstance(pool, PromptPool):
        raise TypeError(f"the model must have a pool of prompts, got {type(pool).__name__}")
    return pool


def similarity_loss(pool: PromptPool, weight: float = 0.01) -> ExtraLoss:
    """Return the extra loss for training a pool: less the nearer samples are to what they chose.

    Wang et al. subtract the similarity, which pulls prompts towards their samples; the code of Weng et al. adds it.
    """
    return lambda features, labels: -weight * pool.similarity


def tune_by_matching(
    model: TunedModel,
    clients: Sequence[tuple[Tensor, Tensor]],
    options: LocalOptions,
    *,
    num_rounds: int,
    fraction: float = 1.0,
    seed: int = 0,
    after_round: Callable[[], None] = lambda: None,
) -> None:
    """Train a :func:`pool_model` in place by PFPT: the head is averaged, the pool is matched, and its size changes.

    Parameters and errors are those of :func:`federated_average`. All clients of a round send the prompts that training
    moved for any of them, and a round's pool therefore never has fewer than a sample takes.
    """
    pool = pool_of(model)
    start, finished = model.trained_state()["backbone.prompts"], 0
    sent: dict[int, Tensor] = {}

    def match() -> None:
        nonlocal start, finished
        moved = torch.stack([(prompts != start).any(dim=1) for prompts in sent.values()]).any(dim=0)
        start = matched_prompts({client: prompts[moved] for client, prompts in sent.items()}, (seed, finished))
        pool.prompts = nn.Parameter(start.to(pool.prompts.device, copy=True))
        sent.clear()
        finished += 1
        after_round()

    federated_average(
        model,
        clients,
        options,
        num_rounds=num_rounds,
        fraction=fraction,
        seed=seed,
        extra_loss=similarity_loss(pool),
        optimizer=prompt_adam,
        after_client=lambda client, state: sent.update({client: state["backbone.prompts"]}),
        after_round=match,
    )
