"""Runs with exact sums: the heads do not depend, to the bit, on how the same samples are divided among clients."""

from pathlib import Path

from tests.support.simulation import head_bytes, simulate


def weights(folder: Path) -> dict[str, bytes]:
    """Return the heads' numbers, which stand behind what a file says of its run."""
    files = {name: data for name, data in head_bytes(folder).items() if name != "README"}
    return {name: data[8 + int.from_bytes(data[:8], "little") :] for name, data in files.items()}


def test_heads_are_the_same_bits_for_any_split(tmp_path: Path) -> None:
    options = {"method": "fedncm,fed3r,fedcgs", "test_dataset": "builtin", "exact_sums": True}
    few = simulate(tmp_path, num_clients=2, partitioner="iid", nodes=1, **options)
    many = simulate(tmp_path, num_clients=9, nodes=2, **options)
    rounded = simulate(tmp_path, num_clients=9, nodes=2, **{**options, "exact_sums": False})

    assert weights(few) == weights(many)
    assert all(weights(rounded)[name] != exact for name, exact in weights(many).items())
