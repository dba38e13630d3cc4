"""The numbers of the protocol page are those of real messages, and its limits those of the code."""

import re

import pytest
import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedstats_app.base.rank_rule import RankRule
from fedstats_app.grid.client_grid import CLIENTS_PER_MESSAGE, CLIENTS_PER_WINDOW
from fedstats_app.heads.scores import NUM_MARGIN_BINS
from fedstats_app.statistics import ScatterSpec, StatisticsSpec
from fedstats_app.statistics.specification import MAX_CLASSES
from fedstats_app.testing import LocalGrid
from fedstats_app.wire import (
    QUERY_STATISTICS,
    ReceivedStatistics,
    StatisticsRequest,
    read_statistics_reply,
    read_statistics_request,
    statistics_reply,
)
from fedstats_app.wire.arrays import MAX_HEADER_BYTES
from fedstats_app.wire.reading import MAX_COUNT, MAX_REASON
from fedstats_app.wire.serving import MAX_CLASS_NAME_LENGTH, MAX_CLASS_NAMES
from fedstats_app.wire.statistics import MAX_MEANS_PER_CLASS
from tests.docs.markdown import DOCS, items, prose, rows

PAGE = DOCS / "protocol.md"
CLASSES, PRESENT, DIM, FEW = 10, 3, 1280, 60


def exchange(
    num_samples: int = FEW, *, gram: bool = True, scatter: ScatterSpec | None = None
) -> tuple[Message, ReceivedStatistics]:
    """Send one client's statistics over a grid: 3 of 10 classes, d = 1280."""
    app = ClientApp()

    @app.query("statistics")
    def answer(msg: Message, context: Context) -> Message:
        torch.manual_seed(0)
        features, labels = torch.rand(num_samples, DIM), torch.arange(num_samples) % PRESENT
        statistics = read_statistics_request(msg).statistics(features, labels)
        return statistics_reply(msg, statistics, backbone_fingerprint="0" * 64, seconds=1.0)

    grid = LocalGrid(app, [{}], {})
    request = StatisticsRequest(CLASSES, StatisticsSpec(gram=gram, scatter=scatter))
    message = Message(request.to_content(), dst_node_id=grid.get_node_ids()[0], message_type=QUERY_STATISTICS)
    [reply] = grid.send_and_receive([message])
    return reply, read_statistics_reply(reply, request)


def stated(what: str) -> int:
    """Return a number of the example."""
    [number] = [number for item, number in items(PAGE, "query.statistics") if item == what]
    return int(number.removesuffix(": ").replace(",", ""))


def test_example_is_what_a_client_sends() -> None:
    (few, received), (many, received_of_many) = exchange(), exchange(DIM)
    of_few, of_many = few.content["statistics"], many.content["statistics"]
    assert stated("`class-sums` without header") == of_few["class-sums"].numpy().nbytes
    assert stated("`within-factor` without header, from 60 samples") == of_few["within-factor"].numpy().nbytes
    assert stated("`within` without header, from 1,280 samples or more") == of_many["within"].numpy().nbytes
    assert stated("the reply for Fed3R or FedCGS, or for all, from 60 samples") == received.wire_bytes
    assert stated("the same from 1,280 samples or more") == received_of_many.wire_bytes
    assert stated("the reply for FedNCM or FedCOF alone") == exchange(gram=False)[1].wire_bytes


FACTOR = ScatterSpec(RankRule("number", 9.0))


@pytest.mark.parametrize(("num_samples", "scatter"), [(FEW, None), (DIM, None), (FEW, FACTOR)])
def test_formulas_give_the_bytes(num_samples: int, scatter: ScatterSpec | None) -> None:
    reply, _ = exchange(num_samples, gram=scatter is None, scatter=scatter)
    for key, array in reply.content["statistics"].items():
        [row] = [row for row in rows(PAGE, "array") if f"`{key}`" in row[0]]
        formula = row[2].strip("$").replace("\\,", "")
        formula = re.sub(r"(?<=[0-9a-z])(?=[a-z(])", "*", formula)
        sizes = {"s": 4, "m": PRESENT, "d": DIM, "r": num_samples - PRESENT, "t": 2, "k": 9}
        assert eval(formula, sizes) == len(array.data), row


def test_records_and_keys_are_all_described() -> None:
    reply, _ = exchange()
    with_factor, _ = exchange(gram=False, scatter=FACTOR)
    request = StatisticsRequest(CLASSES).to_content()
    described = prose(PAGE)
    for content in (reply.content, with_factor.content, request):
        for record in content.values():
            assert all(f"`{key}`" in described for key in record)


def test_limits_are_those_of_the_code() -> None:
    text = " ".join(prose(PAGE).split())
    for limit, sentence in (
        (MAX_CLASSES, r"integer \$C\$, at most ([\d,]+)"),
        (MAX_MEANS_PER_CLASS, r"`means-per-class` \(at most ([\d,]+)\)"),
        (MAX_CLASS_NAMES, r"at most ([\d,]+) different strings"),
        (MAX_CLASS_NAME_LENGTH, r"1 to ([\d,]+) printable characters"),
        (MAX_COUNT, r"counts from 1 to ([\d,]+)"),
        (NUM_MARGIN_BINS, r"histograms with ([\d,]+) bins"),
        (MAX_HEADER_BYTES, r"header \(at most ([\d,]+) bytes\)"),
        (MAX_REASON, r"error \(up to ([\d,]+) characters\)"),
        (CLIENTS_PER_WINDOW, r"at most ([\d,]+) clients;"),
        (CLIENTS_PER_MESSAGE, r"carries at most ([\d,]+) clients"),
    ):
        found = re.search(sentence, text)
        assert found is not None, sentence
        assert int(found[1].replace(",", "")) == limit, sentence
