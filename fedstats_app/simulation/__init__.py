"""A whole run in one process: the same ServerApp and ClientApp, without Ray, servers or further processes.

It may import the apps and what stands below them, and what Flower does not make public in one module (`flower`).
"""
