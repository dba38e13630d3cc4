"""One training on the server, by gradients or without: its rounds, scores and records."""
