"""What can train from a solved head: one record per trainer, and how the server runs it."""
