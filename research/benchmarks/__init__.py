"""Speed, memory and accuracy, each against a peer or a limit measured in the same run."""
