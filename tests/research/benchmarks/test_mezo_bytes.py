"""Bytes of a round of FedMeZO, as docs/protocol.md gives them."""

from research.benchmarks.mezo_bytes import sizes


def test_values_are_as_the_protocol_says_and_the_rest_is_small() -> None:
    down, up = sizes()
    assert (down.values, up.values) == (40, 32)
    for size in (down, up):
        assert size.values < size.packed < size.content < size.message < size.values + 300
        assert size.content - size.packed < size.content / 3  # what one field would save
