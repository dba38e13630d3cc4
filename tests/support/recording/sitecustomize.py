"""Record each host that a Python process looks up, connects or sends to; loaded by PYTHONPATH, in children too."""

import os
import sys

# The place of the address among an event's arguments.
EVENTS = {"socket.connect": 1, "socket.sendto": 1, "socket.sendmsg": 1, "socket.getaddrinfo": 0}
EVENTS |= {"socket.gethostbyname": 0}
LOOPBACK = ("127.", "::1", "localhost", "0.0.0.0")


def record(event: str, arguments: tuple[object, ...]) -> None:
    """Append a line for each host that is not this machine."""
    if event not in EVENTS:
        return
    address = arguments[EVENTS[event]]
    host = address[0] if isinstance(address, tuple) else address
    text = host.decode() if isinstance(host, bytes) else str(host)
    # A path is a socket of this machine, None an address to listen at.
    if host and not text.startswith(("/", *LOOPBACK)):
        with open(os.environ["RECORDED_HOSTS"], "a") as file:
            file.write(f"{event} {text} by {' '.join(sys.argv)}\n")


sys.addaudithook(record)
