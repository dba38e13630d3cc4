"""What a node does with each message: its data and split, features, replica, a model of its own.

It may import all but the server, results and the command line.
"""
