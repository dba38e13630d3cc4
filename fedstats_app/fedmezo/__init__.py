"""FedMeZO without Flower: directions, perturbed evaluations, replicas that follow a log of scalars, their averages.

It may import training and what stands below it, and needs torch and numpy only.
"""
