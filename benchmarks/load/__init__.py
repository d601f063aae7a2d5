"""The load: everything that plays clients and publishers.

The rule: it must be much cheaper than what it measures, so it is raw sockets, epoll and bytes, and no library.
"""
