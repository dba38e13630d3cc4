"""Rounds of training by gradients: what is averaged, who takes part, and what one client can do to a round."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord
from flwr.serverapp.strategy import Result

from fedstats_app.base.checkpoint import read_checkpoint, save_checkpoint
from fedstats_app.grid.client_grid import ClientGrid
from fedstats_app.grid.discovery import TooFewClients
from fedstats_app.grid.evaluation import evaluate_model_on_clients
from fedstats_app.strategies.fine_tuning import FineTuning, TrainingRound
from fedstats_app.strategies.server_optimizers import load_optimizer_state, make_optimizer, optimizer_state
from fedstats_app.testing import Fault, LocalGrid
from fedstats_app.training.model import TrainingRequest
from fedstats_app.training.training_options import OPTIMIZERS as NAMES
from fedstats_app.training.training_options import OptimizerOptions
from fedstats_app.wire import per_client
from fedstats_app.wire.arrays import to_record, to_tensors
from fedstats_app.wire.reading import metrics_reply
from fedstats_app.wire.training import EvaluationCounts, read_training_task, training_reply
from tests.support.clients import silent

START = {"head.bias": torch.zeros(2), "head.weight": torch.tensor([[1.0, 2.0, 3.0], [-1.0, 0.5, 0.0]])}


def toward_own_number(msg: Message, context: Context, client_id: int | None) -> Message:
    """A client whose model moves toward its own number: what each sends can be computed by hand."""
    if msg.metadata.message_type == "evaluate.model":
        return metrics_reply(msg, EvaluationCounts(10, client_id or 0, 1.0))
    task = read_training_task(msg)
    own = float(client_id if client_id is not None else context.node_config["number"])
    # Not the same for every array and round, so that moments do not vanish.
    pull = 0.1 + 0.05 * task.server_round
    moved = {name: tensor + pull * (own - tensor) for name, tensor in task.trained.items()}
    return training_reply(msg, moved, num_examples=int(own) + 1, loss=own, seconds=0.0)


def clients(count: int, **options: Any) -> LocalGrid:
    return LocalGrid(per_client(toward_own_number), [{"number": number} for number in range(count)], **options)


def hosted(grid: LocalGrid, count: int) -> ClientGrid:
    nodes = sorted(grid.contexts)
    return ClientGrid(grid, {client: nodes[client % len(nodes)] for client in range(count)})


def tuning(inner: Any = None, count: int = 4, **options: Any) -> FineTuning:
    inner = inner if inner is not None else make_optimizer(OptimizerOptions())
    options = {"max_share": 1.0, **options}
    return FineTuning(inner, TrainingRequest(2), {client: client + 1 for client in range(count)}, **options)


def one_round(strategy: FineTuning, grid: ClientGrid) -> tuple[TrainingRound, ArrayRecord]:
    (done,) = strategy.rounds(grid, Result(arrays=to_record(START)), 1)
    return done, done.arrays


def by_hand(
    state: dict[str, torch.Tensor], server_round: int, participants: Iterator[int] | list[int]
) -> dict[str, torch.Tensor]:
    """Average in float64 what the clients of a round send."""
    chosen, pull = list(participants), 0.1 + 0.05 * server_round
    total = sum(client + 1 for client in chosen)
    return {
        name: sum(((client + 1) / total) * (tensor.double() + pull * (client - tensor.double())) for client in chosen)  # type: ignore[misc]
        for name, tensor in state.items()
    }


def test_flowers_fedavg_averages_by_samples() -> None:
    result = tuning().start(hosted(clients(4), 4), to_record(START), 3)
    state: dict[str, torch.Tensor] = START
    for server_round in (1, 2, 3):
        state = by_hand(state, server_round, range(4))  # type: ignore[arg-type]
    for name, tensor in to_tensors(result.arrays).items():
        assert tensor.dtype == torch.float32
        torch.testing.assert_close(tensor.double(), state[name], rtol=1e-5, atol=1e-6)


def test_clients_of_a_round_are_drawn_by_seed_and_round_alone() -> None:
    strategy = tuning(count=20, fraction=0.3)
    drawn = [strategy.participants(number) for number in range(1, 9)]
    assert all(len(set(chosen)) == 6 and chosen == sorted(chosen) for chosen in drawn)
    assert len({tuple(chosen) for chosen in drawn}) == 8
    assert drawn == [tuning(count=20, fraction=0.3).participants(number) for number in range(1, 9)]
    grid = clients(3)
    strategy.start(hosted(grid, 20), to_record(START), 2)
    messages = [msg for received in grid.received.values() for msg in received]
    assert {client for msg in messages for client in msg.content["clients"]["ids"]} == {*drawn[0], *drawn[1]}


@pytest.mark.parametrize("optimizer", NAMES)
def test_bits_do_not_depend_on_hosts_or_order_and_go_on_after_a_stop(optimizer: str, tmp_path: Path) -> None:
    options = OptimizerOptions(optimizer)

    def run(nodes: int, seed: int | None, stop_after: int = 0) -> dict[str, torch.Tensor]:
        inner = make_optimizer(options)
        grid = hosted(clients(nodes, shuffle_seed=seed), 6)
        if not stop_after:
            return to_tensors(tuning(inner, 6, fraction=0.5).start(grid, to_record(START), 6).arrays)
        first = tuning(inner, 6, fraction=0.5).start(grid, to_record(START), stop_after)
        fresh = make_optimizer(options)
        saved = save_checkpoint(tmp_path, stop_after, to_tensors(first.arrays), optimizer_state(inner), {})
        checkpoint = read_checkpoint(saved)
        load_optimizer_state(fresh, checkpoint.optimizer)
        later = tuning(fresh, 6, fraction=0.5, first_round=stop_after + 1)
        return to_tensors(later.start(grid, to_record(checkpoint.arrays), 6 - stop_after).arrays)

    expected = run(1, None)
    assert not torch.equal(expected["head.weight"], START["head.weight"])
    for other in (run(3, 5), run(6, 9), run(2, None, stop_after=2), run(2, 3, stop_after=5)):
        assert all(torch.equal(other[name], expected[name]) for name in expected)


def multiplied(times: float) -> Fault:
    """A client whose arrays are multiplied by something."""

    def tamper(reply: Message) -> Message:
        for name, record in list(reply.content.array_records.items()):
            changed = {key: array.numpy().astype(np.float64) * times for key, array in record.items()}
            reply.content[name] = ArrayRecord({key: Array(one.astype(np.float32)) for key, one in changed.items()})
        return reply

    return Fault(tamper=tamper)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (multiplied(np.nan), "must be finite, got NaN"),
        (Fault(raises="CUDA out of memory"), "out of memory"),
        (Fault(unavailable=True), "Node Unavailable"),
        (Fault(refused=True), "could not be sent"),
    ],
)
def test_a_bad_update_is_dropped_and_named_and_the_others_count(fault: Fault, reason: str) -> None:
    done, arrays = one_round(tuning(), hosted(clients(4, faults={2: fault}), 4))
    assert list(done.failures) == [2] and reason in done.failures[2]
    assert done.num_examples == {0: 1, 1: 2, 3: 4} and done.train_loss == pytest.approx((0 * 1 + 1 * 2 + 3 * 4) / 7)
    for name, expected in by_hand(START, 1, [0, 1, 3]).items():
        torch.testing.assert_close(to_tensors(arrays)[name].double(), expected, rtol=1e-5, atol=1e-6)


def test_too_few_updates_are_an_error_with_reasons() -> None:
    faults = {number: Fault(raises=f"broken {number}") for number in range(3)}
    with pytest.raises(TooFewClients, match=r"round 1: 1 of 4 sites sent a usable update, 2 are needed.*broken 0"):
        tuning(min_clients=2).start(hosted(clients(4, faults=faults), 4), to_record(START), 1)


def test_a_client_cannot_make_itself_heavier() -> None:
    def heavier(reply: Message) -> Message:
        for record in reply.content.metric_records.values():
            record["num-examples"] = 10_000_000
        return reply

    done, _ = one_round(tuning(), hosted(clients(4, faults={1: Fault(tamper=heavier)}), 4))
    assert done.failures == {1: "num-examples: must be 2, got 10000000"}


def test_bytes_are_those_of_the_arrays_that_travelled() -> None:
    done, _ = one_round(tuning(fraction=0.5, fixed={"head.extra": torch.zeros(100)}), hosted(clients(2), 4))
    header, trained = 128, 4 * 8
    assert done.bytes_up == 2 * (2 * header + trained)
    assert done.bytes_down == 2 * (2 * header + trained) + 2 * (header + 400)


def test_it_runs_under_a_plain_grid_of_nodes() -> None:
    grid = clients(3)
    numbers = dict.fromkeys(grid.contexts)
    strategy = FineTuning(make_optimizer(OptimizerOptions()), TrainingRequest(2), numbers, max_share=1.0)
    result = strategy.start(grid, to_record(START), 1, evaluate_fn=lambda number, _: MetricRecord({"round": number}))
    for name, expected in by_hand(START, 1, range(3)).items():  # type: ignore[arg-type]
        torch.testing.assert_close(to_tensors(result.arrays)[name].double(), expected, rtol=1e-5, atol=1e-6)
    assert result.evaluate_metrics_serverapp == {1: MetricRecord({"round": 1})}


def test_who_claims_to_evaluate_more_samples_than_its_statistics_allow_is_left_out() -> None:
    def forge(reply: Message) -> Message:
        reply.content["metrics"]["num-examples"] = 10_000_000  # type: ignore[index]
        return reply

    grid = clients(4, faults={2: Fault(tamper=forge)})
    request, known = TrainingRequest(2, holdout=0.2), dict.fromkeys(grid.contexts, 40)
    counts, failures = evaluate_model_on_clients(grid, request, known, to_record(START), {}, 5)  # type: ignore[arg-type]
    assert counts.num_examples == 30
    assert list(failures.values()) == ["it claims 10000000 samples to evaluate on, its statistics allow 35"]


def test_a_silent_client_is_not_waited_for_in_every_round_unless_it_is_needed() -> None:
    def asked_in(min_clients: int) -> list[int]:
        local = clients(3, faults=silent(1))
        grid, nodes, asked = ClientGrid(local, reply_timeout=0.02), sorted(local.contexts), list[int]()
        optimizer, numbers = make_optimizer(OptimizerOptions()), dict.fromkeys(nodes)
        strategy = FineTuning(optimizer, TrainingRequest(2), numbers, min_clients=min_clients)
        with contextlib.suppress(TooFewClients):
            for _ in strategy.rounds(grid, Result(arrays=to_record(START)), 8):
                asked.append(len(local.received[nodes[1]]))
        return asked

    assert asked_in(2) == [1, 1, 2, 2, 2, 2, 3, 3] and asked_in(3) == []


# Samples of the clients; one is large, and takes as many more steps.
COUNTS = (20, 30, 40, 50, 900, 3, 30, 40)
LIAR = 3


def toward_a_goal(msg: Message, context: Context, client_id: int | None) -> Message:
    """A client that moves toward a goal of its own near the common one, the farther the more samples it has."""
    task, client = read_training_task(msg), int(client_id or 0)
    own = np.random.default_rng(client).normal(size=8).astype(np.float32)
    goals = {"head.bias": torch.from_numpy(own[:2]), "head.weight": torch.from_numpy(5 + own[2:].reshape(2, 3))}
    pull = 1.0 - 0.99 ** COUNTS[client]
    moved = {name: tensor + pull * (goals[name] - tensor) for name, tensor in task.trained.items()}
    return training_reply(msg, moved, num_examples=COUNTS[client], loss=1.0, seconds=0.0)


def train(
    optimizer: str, *, times: float | None = None, rounds: int = 4, without: int | None = None, **limits: Any
) -> tuple[dict[str, torch.Tensor], list[TrainingRound]]:
    counts = {client: count for client, count in enumerate(COUNTS) if client != without}
    faults = {} if times is None else {LIAR: multiplied(times)}
    grid = hosted(LocalGrid(per_client(toward_a_goal), [{}] * len(COUNTS), faults=faults), len(COUNTS))
    strategy = FineTuning(make_optimizer(OptimizerOptions(optimizer)), TrainingRequest(2), counts, **limits)
    seen = list(strategy.rounds(grid, Result(arrays=to_record(START)), rounds))
    return to_tensors(seen[-1].arrays), seen


def distance(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    return max(float((one[name] - other[name]).abs().max()) for name in one)


@pytest.mark.parametrize("optimizer", NAMES)
@pytest.mark.parametrize("times", [-100.0, 1e9])
def test_one_hostile_update_is_shortened_under_every_optimizer(optimizer: str, times: float) -> None:
    honest, _ = train(optimizer, without=LIAR)
    attacked, rounds = train(optimizer, times=times)
    assert all(one.clipped[LIAR] > 40 and not one.failures for one in rounds)
    unprotected, _ = train(optimizer, times=times, clip=0.0, max_share=1.0)
    assert distance(unprotected, honest) > 0.5 * distance(honest, START)
    if optimizer != "fedadam":  # of which every step is as long
        assert 2 * distance(attacked, honest) < distance(unprotected, honest)


def test_honest_clients_are_untouched_a_large_one_too() -> None:
    limited, rounds = train("fedadam", max_share=1.0)
    free, _ = train("fedadam", clip=0.0, max_share=1.0)
    assert not any(one.clipped or one.failures for one in rounds)
    assert all(torch.equal(limited[name], free[name]) for name in free)


@pytest.mark.parametrize("share", [0.3, None])
def test_no_client_weighs_more_than_its_share(share: float | None) -> None:
    limit = 0.2 if share is None else share  # of eight clients
    capped, rounds = train("fedavg", max_share=share, rounds=1)
    weights = np.minimum(COUNTS, limit / (1 - limit) * (sum(COUNTS) - 900))
    expected = np.zeros(2)
    for client, weight in enumerate(weights):
        own = np.random.default_rng(client).normal(size=8).astype(np.float32)
        expected += weight / weights.sum() * (1.0 - 0.99 ** COUNTS[client]) * own[:2]
    assert capped["head.bias"].numpy() == pytest.approx(expected, abs=4e-3)
    assert rounds[0].num_examples[4] == 900  # what it has, and not what it weighs


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"first_round": 0}, "first_round must be at least 1, got 0"),
        ({"fraction": 0.0}, r"fraction must lie in \(0, 1\], got 0.0"),
        ({"fraction": 1.01}, r"fraction must lie in \(0, 1\], got 1.01"),
    ],
)
def test_rounds_and_shares_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FineTuning(make_optimizer(OptimizerOptions()), TrainingRequest(2), {1: 10}, **options)
