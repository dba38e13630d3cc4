"""Ways from a finished first stage to a model for every client, side by side."""
