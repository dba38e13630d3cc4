"""A Flower app that does nothing but send messages."""
