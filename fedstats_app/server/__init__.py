"""The stages of a run and what they share. It may import all but the client and the command line."""
