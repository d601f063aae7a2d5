"""How much of what was written the peer has not received: what waits in this process, and what waits in the kernel.

The kernel takes more only when a good part of its own buffer, which may be megabytes, is free again. A slow but steady reader
would look like one that takes nothing to whoever watches the process's own buffer alone.
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
