"""Whether something listens at an address, asked before an engine that would try for minutes and tell of every try."""

import socket

SECONDS = 10.0


def unreachable(host: str, port: int) -> str | None:
    """Why there is no connection to be had, or None where there is one.

    >>> unreachable("127.0.0.1", 1)
    'Connection refused'
    """
    try:
        socket.create_connection((host.strip("[]"), port), timeout=SECONDS).close()
    except (OSError, OverflowError, UnicodeError) as error:
        return str(getattr(error, "strerror", None) or error)
    return None
