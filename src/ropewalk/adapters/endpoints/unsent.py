"""How many written bytes the peer has not received: those in this process, and those in the kernel's buffer.

The kernel takes more only when a good part of its own buffer, which may be megabytes, is free again. If only the process's
buffer were watched, a slow but steady reader would look like one that takes nothing.
"""

import asyncio
import fcntl
import sys
import termios


def unsent_bytes(transport: asyncio.Transport) -> int:
    return transport.get_write_buffer_size() + _in_kernel(transport)


def _in_kernel(transport: asyncio.Transport) -> int:
    """0 where the system does not tell."""
    sock = transport.get_extra_info("socket")
    answer = bytearray(4)
    try:
        fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, answer)
    except (OSError, ValueError):  # not for sockets on this system, or closed meanwhile
        return 0
    return int.from_bytes(answer, sys.byteorder)
