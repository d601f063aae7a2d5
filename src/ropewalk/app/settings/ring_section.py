"""The settings of a ring of nodes; a part of `sections`, which says what this file is for."""

from dataclasses import dataclass

from ropewalk.app.settings.declarations import secret_text, text, words


@dataclass(frozen=True)
class RingSettings:
    """Several servers with the memory broker that are one: each keeps a share of the streams, and any takes any client."""

    ring: tuple[str, ...] = words(
        (),
        "Nodes that begin the ring together, as name=host:port of the port of each, this one included; a node that joins later "
        "names itself and any of the others. Empty: this server is alone.",
    )
    ring_ca_file: str = text(
        "", "File with the certificates that nodes trust at each other, where --ssl_cert is set; empty: those of the system."
    )
    ring_key: str = secret_text(
        "Key that nodes prove to each other and never send, at least 16 characters, the same at all nodes; empty: derived from "
        "--secret. It gives access to all messages and sessions of the ring."
    )
    ring_node: str = text(
        "",
        "Which of them this server is; empty: --node_id, or the name of the host.",
    )


NO_RING = RingSettings()
