"""Plain values that say what became of a client, a method, a training or a personal model."""
