"""An app of one's own."""
