"""The SuperNode that `fedstats node` starts: its owner, not the server, says whose code answers messages.

Flower's own SuperNode unpacks and imports whatever app a run comes with. Here every message gets a process of ours,
which looks at the bundle before anything of it is unpacked, and by default never unpacks it.
Only `flower` knows Flower's insides. It may import everything but cli.
"""
