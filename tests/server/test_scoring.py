from fedstats_app.grid.evaluation import Scores
from fedstats_app.server.scoring import method_results
from tests.support.clients import Clients, strategy_for


def test_who_has_over_half_of_the_samples_is_named_beside_the_mean_over_clients() -> None:
    strategy = strategy_for("fedncm")
    strategy.start(Clients(3).client_grid(1))
    for sizes, named in (([10, 30, 19], True), ([10, 30, 20], False), ([10], False)):
        scores = Scores("clients", accuracies={"fedncm": {0: 0.5, 1: 1.0}}, examples=dict(enumerate(sizes)))
        [result] = method_results(strategy, scores)
        notes = [note for note in result.notes if note.startswith("client")]
        share = "client 1 has 51% of the samples that it was scored on"
        assert notes == [f"{share}; with every client counting alike the accuracy is 75.00%"] * named
