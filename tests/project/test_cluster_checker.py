"""The checker of the cluster scenario finds each anomaly in a record that has it, and none in a healthy record."""

from collections.abc import Callable

from tests.cluster.checker import (
    END,
    Kick,
    Kind,
    Life,
    Message,
    Position,
    Publication,
    Record,
    ReportedGap,
    StreamHistory,
    anomalies,
)

NAMES = ("a", "b", "c", END)


def message(offset: int, name: str = "", epoch: str = "e") -> Message:
    return Message(Position(epoch, offset), name or NAMES[offset - 1])


def healthy() -> Record:
    """Four publications to one stream, two clients, two nodes; one client was disconnected remotely and has a new session."""
    record = Record()
    for number, name in enumerate(NAMES, start=1):
        record.publications[name] = Publication(name, "chat", number, number + 0.5, Position("e", number))
    record.publications["unanswered"] = Publication("unanswered", "chat", 9.0)
    messages = tuple(message(offset) for offset in range(1, 5))
    for client in ("bo", "al"):
        record.seen[client, "chat"] = list(messages)
        record.here.add(client)
    record.members = {"chat": {"bo", "al"}}
    for node in ("n0", "n1"):
        record.histories[node] = {"chat": StreamHistory("e", messages)}
        record.presence[node] = {"chat": {"bo", "al"}}
    record.kicks = [Kick("bo", 5.0, 6.0)]
    record.lives = [Life("bo", 1.0, 1.1, None, False, 5.5), Life("bo", 7.0, 7.1, 1.1, False), Life("al", 1.0, 1.1, None, False)]
    return record


def with_history(record: Record, *messages: Message, epoch: str = "e") -> None:
    for node in record.histories:
        record.histories[node] = {"chat": StreamHistory(epoch, messages)}


def lost_from_history(record: Record) -> None:
    with_history(record, message(1), message(2), message(4))


def lost_without_a_position(record: Record) -> None:
    record.publications["xadd"] = Publication("xadd", "chat", 1.0, 2.0)


def never_delivered(record: Record) -> None:
    del record.seen["bo", "chat"][2:]


def registered_twice(record: Record) -> None:
    record.publications["unanswered"].acked = 9.5
    record.publications["unanswered"].position = Position("e", 5)
    with_history(record, *(message(offset) for offset in range(1, 5)), message(5, "unanswered"), message(6, "unanswered"))


def delivered_twice(record: Record) -> None:
    record.seen["bo", "chat"].insert(2, message(2))


def delivered_late(record: Record) -> None:
    record.seen["bo", "chat"][1:3] = [ReportedGap("trimmed", "e", 3), message(3), message(2)]


def registered_out_of_order(record: Record) -> None:
    record.publications["a"].sent = 2.7  # "b" had been acknowledged at 2.5


def gap_not_reported(record: Record) -> None:
    del record.seen["bo", "chat"][1]


def beginning_not_delivered(record: Record) -> None:
    del record.seen["bo", "chat"][0]


def gap_reported_without_need(record: Record) -> None:
    record.seen["bo", "chat"].insert(2, ReportedGap("trimmed", "e", 3))


def position_given_twice(record: Record) -> None:
    record.seen["bo", "chat"][1] = message(2, "unanswered")


def epoch_not_kept(record: Record) -> None:
    record.publications["b"].position = Position("former", 2)


def never_published(record: Record) -> None:
    record.seen["bo", "chat"][1] = message(2, "from nowhere")


def of_another_stream(record: Record) -> None:
    record.publications["b"].stream = "news"


def member_that_left(record: Record) -> None:
    record.members["chat"].discard("bo")


def member_not_listed(record: Record) -> None:
    record.members["chat"].add("cy")


def kicked_session_resumed(record: Record) -> None:
    record.lives[1] = record.lives[1]._replace(restored=True)


def kicked_session_lives_on(record: Record) -> None:
    record.lives[0] = Life("bo", 1.0, 1.1, None, False)


def former_connection_open(record: Record) -> None:
    record.left_open.append("bo at n0")


def presence_by_node(record: Record) -> None:
    record.presence["n1"] = {"chat": {"bo"}}


def history_by_node(record: Record) -> None:
    record.histories["n1"] = {"chat": StreamHistory("e", (*record.histories["n1"]["chat"].messages, message(5, "unanswered")))}


CASES: list[tuple[Kind, Callable[[Record], None]]] = [
    (Kind.LOST, lost_from_history),
    (Kind.LOST, lost_without_a_position),
    (Kind.LOST, never_delivered),
    (Kind.DUPLICATE, registered_twice),
    (Kind.DUPLICATE, delivered_twice),
    (Kind.REORDERED, delivered_late),
    (Kind.REORDERED, registered_out_of_order),
    (Kind.SILENT_GAP, gap_not_reported),
    (Kind.SILENT_GAP, beginning_not_delivered),
    (Kind.NEEDLESS_GAP, gap_reported_without_need),
    (Kind.POSITION_REUSED, position_given_twice),
    (Kind.EPOCH_CHANGED, epoch_not_kept),
    (Kind.UNKNOWN, never_published),
    (Kind.UNKNOWN, of_another_stream),
    (Kind.PRESENCE_GHOST, member_that_left),
    (Kind.PRESENCE_MISSING, member_not_listed),
    (Kind.KICKED_BACK, kicked_session_resumed),
    (Kind.KICKED_BACK, kicked_session_lives_on),
    (Kind.TWO_LIVES, former_connection_open),
    (Kind.NODES_DIFFER, presence_by_node),
    (Kind.NODES_DIFFER, history_by_node),
]


def kinds(record: Record, lossy: bool = False) -> set[Kind]:
    return {found.kind for found in anomalies(record, lossy)}


def test_healthy_record_has_no_anomaly() -> None:
    assert anomalies(healthy()) == []


def test_each_kind_of_anomaly_is_found() -> None:
    missed = []
    for kind, harm in CASES:
        record = healthy()
        harm(record)
        if kind not in kinds(record):
            missed.append((kind, harm.__name__))
    assert missed == []
    assert {kind for kind, _ in CASES} == set(Kind)


def test_session_may_resume_before_a_disconnect_is_acknowledged() -> None:
    record = healthy()
    record.lives[1] = Life("bo", 5.5, 5.6, 1.1, True)

    assert anomalies(record) == []


def changed_epoch(reported: bool) -> Record:
    """The engine lost what followed "a": the stream goes on in another epoch, in which the lost ones were published again."""
    record = healthy()
    former = [message(1, "a", "former"), message(2, "b", "former")]
    record.publications["a"].position, record.publications["b"].position = (each.position for each in former)
    record.publications["c"].position, record.publications[END].position = Position("e", 1), Position("e", 2)
    gap = [ReportedGap("epoch_changed", "e", 1)] if reported else []
    for client in ("bo", "al"):
        record.seen[client, "chat"] = [*former, *gap, message(1, "c"), message(2, END)]
    with_history(record, message(1, "c"), message(2, END))
    return record


def test_second_receipt_at_another_position_is_a_duplicate_unless_the_engine_lost_the_first() -> None:
    record = healthy()
    record.other_receipts.append(("chat", message(9, "a")))
    assert kinds(record) == kinds(record, lossy=True) == {Kind.DUPLICATE}
    record.other_receipts[:] = [("chat", message(9, "a", "other"))]
    assert anomalies(record, lossy=True) == []
    assert Kind.DUPLICATE in kinds(record)


def test_lossy_engine_may_change_the_epoch_only_with_a_gap_notice() -> None:
    assert anomalies(changed_epoch(reported=True), lossy=True) == []
    assert kinds(changed_epoch(reported=False), lossy=True) == {Kind.SILENT_GAP}
    assert Kind.EPOCH_CHANGED in kinds(changed_epoch(reported=True))
    assert Kind.LOST in kinds(changed_epoch(reported=True))


def test_lossy_engine_keeps_what_it_acknowledged_in_the_last_epoch() -> None:
    record = changed_epoch(reported=True)
    with_history(record, message(2, END))

    assert kinds(record, lossy=True) == {Kind.LOST}
