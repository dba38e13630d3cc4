"""What a node measures in a round of FedMeZO, and the samples of clients that it keeps for the next one."""

from __future__ import annotations

import logging
from collections import OrderedDict

import torch

from fedstats_app.client.site import Site
from fedstats_app.fedmezo.directions import Probe
from fedstats_app.fedmezo.log import NodeFiles
from fedstats_app.fedmezo.perturbation import Perturbation, check_reading, curvatures, projected_gradients
from fedstats_app.fedmezo.replica import Replica
from fedstats_app.fedmezo.setup import MezoSetup
from fedstats_app.training.model import TunedModel
from fedstats_app.training.samples import Samples, SelectedSamples, batch_order
from fedstats_app.wire.mezo import CURVATURE_DIRECTIONS, MezoRequest

logger = logging.getLogger("fedstats_app")

# Samples of clients that a worker keeps in memory from round to round, in bytes.
SAMPLES_IN_MEMORY = 2**30
_HOW = "perturbed"


class ClientSamples:
    """The training samples of the clients that a process has been asked for.

    Parameters
    ----------
    site : Site
        The node, one for all partitions that it hosts.
    """

    def __init__(self, site: Site) -> None:
        self._site = site
        # From client to its samples, its number and the samples' bytes; the one asked last at the end.
        self._kept: OrderedDict[int | None, tuple[Samples, int, int]] = OrderedDict()

    def of(self, client_id: int | None, setup: MezoSetup) -> tuple[Samples, int]:
        """Return a client's samples and its number; a worker that lives on keeps them for the next round."""
        kept = self._kept
        if client_id not in kept:
            site = Site(self._site.config, self._site.node, client_id)
            _, samples = site.samples(setup.request, held_out=False)
            size = len(samples.labels)
            one = samples.inputs(torch.zeros(min(1, size), dtype=torch.int64))
            kept[client_id] = samples, site.number, size * one.numel() * one.element_size()
            while sum(size for *_, size in kept.values()) > SAMPLES_IN_MEMORY and len(kept) > 1:
                kept.popitem(last=False)
        kept.move_to_end(client_id)
        return kept[client_id][:2]


class Measurement:
    """Measures a replica's loss around it.

    Parameters
    ----------
    setup : MezoSetup
        Of the training.
    model, replica
        Which share their parameters.
    batch_size : int
        Samples per forward pass.
    files : NodeFiles
        Of the training, in which is kept how this model can be perturbed.
    """

    def __init__(
        self, setup: MezoSetup, model: TunedModel, replica: Replica, batch_size: int, files: NodeFiles
    ) -> None:
        self._setup, self._model, self._replica, self._batch_size = setup, model, replica, batch_size
        self._files = files
        self._perturbation = Perturbation(model, tuple(replica.parameters))
        how = files.folder / _HOW
        self._checked = how.is_file()
        if self._checked:
            self._perturbation.how = "read" if how.read_text() == "read" else "copy"

    def __call__(self, request: MezoRequest, samples: Samples, number: int) -> tuple[float, ...]:
        """Return what a request wants of at least one sample of the client with this number."""
        if not self._checked:
            self._check(samples)
        perturbation, batch = self._perturbation, self._batch_size
        if request.wanted == "curvature":
            directions = self._replica.directions
            seeds = [(request.seed, index) for index in range(CURVATURE_DIRECTIONS)]
            return curvatures(
                perturbation, samples, batch, [Probe(*seed, self._setup.epsilon, directions) for seed in seeds]
            )
        probes = self._replica.probes(request.seed)
        if not self._setup.own_batches:
            return projected_gradients(perturbation, self._batch(samples, number, request.round, 0), batch, probes)
        drawn = (self._batch(samples, number, request.round, probe.index) for probe in probes)
        return tuple(
            projected_gradients(perturbation, mine, batch, [probe])[0]
            for mine, probe in zip(drawn, probes, strict=True)
        )

    def _batch(self, samples: Samples, number: int, server_round: int, draw: int) -> Samples:
        """Return one of the round's draws of a mini-batch, or all samples."""
        size = self._setup.batch_size
        if not 0 < size < len(samples.labels):
            return samples
        key = (self._setup.request.seed, number, server_round)
        return SelectedSamples(samples, batch_order(len(samples.labels), size, key, draw)[0])

    def _check(self, samples: Samples) -> None:
        if complaint := check_reading(self._perturbation, samples.inputs(torch.arange(min(2, len(samples.labels))))):
            logger.warning("%s", complaint)
        # For the messages to come: in deployment each of them is a new process.
        self._files.write(_HOW, self._perturbation.how.encode())
        self._checked = True
