"""What the configuration can name."""

METHOD_NAMES = ("fedncm", "fed3r", "fedcof", "fedcgs")
