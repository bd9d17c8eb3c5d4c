"""Kernel and trainer logs as promtail, Alloy, rsyslog and plain sockets send them."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import logging.handlers
import socket
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.follow import LiveLog, log_target
from collectors.mapping import Mapper
from collectors.push.logs import LogOf, PushedLogs, classify
from collectors.push.loki import label_text
from collectors.push.parts import LogLine
from collectors.push.syslog import LONGEST_MESSAGE, Frames, parse_message
from collectors.worker import push_receiver
from core.clock import ManualClock, WallClock
from core.config import GreylagConfig
from core.telemetry import Telemetry
from core.types import Event
from tests import needs
from tests.push.encode import loki_request, snappy
from tests.push.site import SOURCES, START_MS, drain, post, receiver

XID = "NVRM: Xid (PCI:0000:9b:00): 79, pid=1234, name=python, GPU has fallen off the bus."
JSON = {"Content-Type": "application/json"}
PROTOBUF = {"Content-Type": "application/x-protobuf"}


async def until(events: list[Event], one: object, n: int, now: int = START_MS) -> None:
    """Takes until n events are there (sockets need a moment)."""
    for _ in range(200):
        events += drain(one, now)[1]
        if len(events) >= n:
            return
        await asyncio.sleep(0.02)


def streams_json(labels: Mapping[str, str], *lines: str) -> bytes:
    values = [[str((START_MS + i) * 1_000_000), line] for i, line in enumerate(lines)]
    return json.dumps({"streams": [{"stream": dict(labels), "values": values}]}).encode()


@pytest.mark.parametrize(("labels", "line", "node"), [
    ({"job": "systemd-journal", "transport": "kernel", "hostname": "n17"}, XID, "n17"),  # promtail's journal
    ({"job": "loki.source.journal.kernel", "__journal__transport": "kernel", "instance": "n17"}, XID, "n17"),  # Alloy
    ({"filename": "/var/log/kern.log", "host": "n17"}, f"Nov 28 01:02:03 n17 kernel: [ 12.5] {XID}", "n17"),
    ({"filename": "/var/log/kernel.n17.log"}, XID, "n17"),
    ({"facility": "kern", "host": "n17", "job": "syslog"}, XID, "n17"),  # promtail's syslog receiver
    ({"app": "kernel", "node_name": "n17"}, XID, "n17"),
])
@pytest.mark.parametrize("form", ["json", "gzip", "protobuf"])
def test_loki_kernel_lines_become_events(tmp_path: Path, labels: dict[str, str], line: str, node: str, form: str) -> None:
    """The labels that promtail and Alloy set, in all forms of a push: an XID on its node, at the entry's time."""
    async def go() -> None:
        async with receiver(tmp_path) as one:
            body, headers = streams_json(labels, line), JSON
            if form == "gzip":
                body, headers = gzip.compress(body), {**JSON, "Content-Encoding": "gzip"}
            elif form == "protobuf":
                shown = "{" + ", ".join(f'{k}="{v}"' for k, v in labels.items()) + "}"
                body, headers = snappy(loki_request([(shown, [(START_MS, line, {})])])), PROTOBUF
            status, _, _ = await post(one.port, "/loki/api/v1/push", body, headers)
            assert status == 204
            _, (event,) = drain(one, START_MS)
        assert (event.kind, event.target.node, event.fields["xid"]) == ("xid", node, 79)
        assert event.at == START_MS or line.startswith("Nov")
    asyncio.run(go())


def test_the_older_form_of_a_loki_push(tmp_path: Path) -> None:
    """labels as text and entries with RFC 3339 times."""
    async def go() -> None:
        async with receiver(tmp_path) as one:
            body = json.dumps({"streams": [{"labels": '{app="kernel", host="n17"}',
                                            "entries": [{"ts": "2026-09-21T14:13:20.123456789Z", "line": XID}]}]}).encode()
            assert (await post(one.port, "/loki/api/v1/push", body, JSON))[0] == 204
            _, (event,) = drain(one, START_MS)
        assert event.at == START_MS + 123
    asyncio.run(go())


def test_trainer_lines_become_readings_of_their_rank(tmp_path: Path) -> None:
    """A rank that only the labels know is the line's; the whole job shares what its log knows."""
    async def go() -> None:
        async with receiver(tmp_path) as one:
            for rank in (0, 5):
                labels = {"log": "trainer", "job": "llama", "rank": str(rank), "node": f"n{rank}"}
                line = " iteration 20/ 1000 | elapsed time per iteration (ms): 2500.0 | lm loss: 2.5E+00 |"
                assert (await post(one.port, "/loki/api/v1/push", streams_json(labels, line), JSON))[0] == 204
            results, events = drain(one, START_MS)
        steps = {(ref.target.rank, ref.target.node): float(scrape.values[ref.index]) for layout, scrape in results
                 for ref in layout.signals if ref.signal == "rank.step"}
        assert steps == {(0, "n0"): 20.0, (5, "n5"): 20.0}
        assert [(e.kind, e.target.job) for e in events] == [("job_phase", "llama")]
    asyncio.run(go())


@pytest.mark.parametrize(("labels", "wanted"), [
    ({"job": "varlogs", "filename": "/var/log/nginx.log"}, None),
    ({"facility": "daemon", "app_name": "sshd", "hostname": "n1"}, None),
    ({"train_job": "llama", "node": "n1"}, LogOf("trainer", "n1", "llama")),
    ({"slurm_job_id": "4711", "host": "n1"}, LogOf("trainer", "n1", "4711")),
    ({"filename": "/logs/trainer.llama.log"}, LogOf("trainer", None, "llama")),
    ({"job": "llama", "rank": "3"}, LogOf("trainer", None, "llama", 3)),
    ({"job": "kernel", "instance": "n1:9080"}, LogOf("kernel", "n1", None)),
    ({"facility": "0", "hostname": "n1"}, LogOf("kernel", "n1", None)),
    ({"unit": "kernel.service", "host": "n1"}, LogOf("kernel", "n1", None)),
    ({}, None),
])
def test_which_log_a_line_is_of(labels: dict[str, str], wanted: LogOf | None) -> None:
    """By the labels that senders set."""
    assert classify(labels) == wanted


def test_pushed_lines_say_what_followed_lines_say() -> None:
    """The shared kernel log captures: pushed line by line or followed as a file, the events are equal."""
    said = 0
    for name in ("dmesg_xid119_8xGPU.log", "dmesg_oom.log", "kmsg_1.log", "xid_lines_gpud.txt"):
        file = needs.shared(f"samples/logs/{name}")
        lines = file.read_text("utf-8", "replace").splitlines()[:2_000]
        kernel = [s for _, s in sorted(SOURCES.items()) if s.parse_line and s.log_kind == "kernel"]
        followed, _ = LiveLog(log_target("kernel", "n1", None, "x"), kernel).read(lines, START_MS)
        pushed, _ = PushedLogs(SOURCES).read([LogLine(line, START_MS, {"app": "kernel", "host": "n1"}) for line in lines], START_MS)
        assert pushed == followed
        said += len(pushed)
    assert said > 0


# --- syslog -----------------------------------------------------------------------------------------------------------
NOW = 1_795_827_723_000  # 2026-11-28T01:02:03Z


@pytest.mark.parametrize(("raw", "at", "labels", "text"), [
    (f"<2>1 2026-11-28T01:02:03.123456+01:00 n17 kernel - - - {XID}", NOW - 3_600_000 + 123,
     {"hostname": "n17", "app_name": "kernel", "facility": "kern"}, XID),
    ('<13>1 2026-11-28T01:02:03Z n17 train 42 ID47 [job@32473 train_job="ll\\"ama" rank="3"][b x="y"] \ufeffhello', NOW,
     {"hostname": "n17", "app_name": "train", "procid": "42", "msgid": "ID47", "facility": "user", "train_job": 'll"ama',
      "rank": "3", "x": "y"}, "hello"),
    ("<13>1 - - - - - -", None, {"hostname": "peer", "facility": "user"}, ""),
    (f"<4>Nov 28 01:02:03 n17 kernel: [ 12.5] {XID}", NOW, {"hostname": "n17", "app_name": "kernel", "facility": "kern"}, f"[ 12.5] {XID}"),
    ("<30>Nov  8 01:02:03 n17 sshd[77]: hi", NOW - 20 * 86_400_000,
     {"hostname": "n17", "app_name": "sshd", "procid": "77", "facility": "daemon"}, "hi"),
    ("<30>Dec 31 23:59:59 n17 a: hi", NOW + 34 * 86_400_000 - 3_724_000,
     {"hostname": "n17", "app_name": "a", "facility": "daemon"}, "hi"),
    ("<6>2026-11-28T01:02:03+00:00 n17 kernel: hi", NOW, {"hostname": "n17", "app_name": "kernel", "facility": "kern"}, "hi"),
    ("<6>Nov 28 01:02:03 kernel: hi", NOW, {"hostname": "peer", "app_name": "kernel", "facility": "kern"}, "hi"),
    ("<14>just a message\x00", None, {"hostname": "peer", "facility": "user"}, "just a message"),
    ("no priority at all", None, {"hostname": "peer"}, "no priority at all"),
    ("<999>Nov 28 01:02:03 n17 a: hi", None, {"hostname": "peer"}, "<999>Nov 28 01:02:03 n17 a: hi"),
])
def test_messages_of_both_forms(raw: str, at: int | None, labels: dict[str, str], text: str) -> None:
    """RFC 5424 and RFC 3164, with what devices leave out; a time without a year is of the nearest one."""
    found = parse_message(raw, "peer", NOW)
    assert (found.at, dict(found.labels), found.text) == (at, labels, text)


def test_a_message_of_last_year_on_new_years_day() -> None:
    """The year is the one in which the time is nearest to now."""
    assert parse_message("<30>Dec 31 23:59:59 n17 a: hi", "peer", 1_798_761_600_000).at == 1_798_761_599_000


@given(st.text(max_size=300))
@settings(max_examples=300, deadline=None)
def test_any_message_is_a_line(raw: str) -> None:
    """No message is refused, none raises."""
    for text in (raw, f"<3>{raw}", f"<3>1 {raw}", f"<3>1 2026-11-28T01:02:03Z a b c d [{raw}"):
        assert parse_message(text, "peer", NOW).labels["hostname"]


MESSAGES = st.lists(st.from_regex(r"<[0-9]{1,2}>[a-z\[\] 0-9]{0,30}", fullmatch=True), max_size=8)


@given(MESSAGES, st.lists(st.booleans(), min_size=8, max_size=8), st.lists(st.integers(1, 40), max_size=30))
@settings(max_examples=200, deadline=None)
def test_frames_do_not_depend_on_the_pieces(messages: list[str], counted: list[bool], cuts: list[int]) -> None:
    """Octet counting and newlines, mixed, cut anywhere: the messages that were sent."""
    data = b"".join(b"%d %s" % (len(m.encode()), m.encode()) if c else m.encode() + b"\n"
                    for m, c in zip(messages, counted, strict=False))
    frames = Frames()
    found: list[str] = []
    pos = 0
    for cut in [*cuts, len(data)]:
        found += frames.feed(data[pos:pos + cut])
        pos += cut
    found += frames.feed(data[pos:]) + frames.end()
    assert found == messages


@pytest.mark.parametrize("stream", [
    b"<13>" + b"x" * (3 * LONGEST_MESSAGE) + b"\n<13>next\n",
    b"%d <13>" % (3 * LONGEST_MESSAGE + 4) + b"x" * (3 * LONGEST_MESSAGE) + b"<13>next\n",
])
def test_a_message_without_end_is_cut(stream: bytes) -> None:
    """The first 64 KiB of it are kept, the rest is dropped and counted, the next message is whole."""
    frames = Frames()
    found = [m for i in range(0, len(stream), 5_000) for m in frames.feed(stream[i:i + 5_000])]
    assert [len(m) for m in found] == [LONGEST_MESSAGE, 8]
    assert (found[1], frames.too_long) == ("<13>next", 1)


@pytest.mark.parametrize("kind", [socket.SOCK_DGRAM, socket.SOCK_STREAM])
def test_the_standard_librarys_handler(tmp_path: Path, kind: int) -> None:
    """logging.handlers.SysLogHandler with facility kern over UDP and TCP."""
    async def go() -> None:
        async with receiver(tmp_path, syslog_listen="127.0.0.1:0") as one:
            def send() -> None:
                handler = logging.handlers.SysLogHandler(("127.0.0.1", one.syslog_port), logging.handlers.SysLogHandler.LOG_KERN, kind)
                handler.ident = "kernel: "
                logger = logging.Logger("syslog-under-test")
                logger.addHandler(handler)
                logger.error(XID)
                logger.error("nothing of interest")
                handler.close()
            await asyncio.to_thread(send)
            events: list[Event] = []
            await until(events, one, 1)
        assert [(e.kind, e.target.node, e.at) for e in events] == [("xid", socket.gethostname(), START_MS)]
    asyncio.run(go())


@pytest.mark.parametrize("form", ["--rfc5424", "--rfc3164"])
@pytest.mark.parametrize("over", ["--udp", "--tcp"])
def test_a_real_syslog_client(tmp_path: Path, form: str, over: str) -> None:
    """util-linux's `logger` in both forms over UDP and TCP: the line is the kernel's by its tag, at the sender's time."""
    async def go() -> None:
        async with receiver(tmp_path, WallClock(), syslog_listen="127.0.0.1:0") as one:
            began = WallClock().now_ms()
            sent = await asyncio.create_subprocess_exec(
                needs.program("logger"), "--server", "127.0.0.1", "--port", str(one.syslog_port), over, form,
                "-t", "kernel", "-p", "user.err", XID)
            assert await sent.wait() == 0
            events: list[Event] = []
            await until(events, one, 1, WallClock().now_ms())
        assert [(e.kind, e.fields["xid"]) for e in events] == [("xid", 79)]
        assert str(events[0].target.node).split(".")[0] == socket.gethostname().split(".")[0]
        assert began - 1000 <= events[0].at <= WallClock().now_ms()
    asyncio.run(go())


def test_raw_sockets_octets_and_newlines(tmp_path: Path) -> None:
    """rsyslog's two framings on one connection, cut in the middle; the last line has no newline."""
    async def go() -> None:
        async with receiver(tmp_path, ManualClock(NOW), syslog_listen="127.0.0.1:0") as one:
            _, writer = await asyncio.open_connection("127.0.0.1", one.syslog_port)
            first = f"<2>1 2026-11-28T01:02:03Z n1 kernel - - - {XID}".encode()
            data = b"%d %s<2>Nov 28 01:02:03 n2 kernel: %s\n<2>Nov 28 01:02:03 n3 kernel: %s" % (
                len(first), first, XID.encode(), XID.encode())
            writer.write(data[:90])
            await writer.drain()
            await asyncio.sleep(0.05)
            writer.write(data[90:])
            writer.write_eof()
            events: list[Event] = []
            await until(events, one, 3, NOW)
            writer.close()
        assert [(e.kind, e.target.node, e.at) for e in events] == [("xid", f"n{i}", NOW) for i in (1, 2, 3)]
    asyncio.run(go())


def test_lines_that_nobody_reads_do_not_stay_in_the_spool(tmp_path: Path) -> None:
    """Taken, counted, and done with at the next take."""
    async def go() -> None:
        async with receiver(tmp_path) as one:
            assert (await post(one.port, "/loki/api/v1/push", streams_json({"job": "nginx"}, "GET /"), JSON))[0] == 204
            assert drain(one, START_MS) == ([], [])
            assert one.spool.place == one.spool.next
            assert one._logs.counts["other_log"] == 1
    asyncio.run(go())


@pytest.mark.parametrize(("shown", "wanted"), [
    ('{}', {}), ('{a="b"}', {"a": "b"}), (' {a="b", c="d\\"e\\n"} ', {"a": "b", "c": 'd"e\n'}), ('{a="b",}', {"a": "b"}),
])
def test_stream_labels_as_text(shown: str, wanted: dict[str, str]) -> None:
    """LogQL's way to write labels."""
    assert label_text(shown) == wanted


@pytest.mark.parametrize(("config", "listens"), [
    ({"push_listen": "127.0.0.1:0"}, True), ({"syslog_listen": "127.0.0.1:0"}, True), ({}, False)])
def test_syslog_alone_is_reason_enough_to_listen(tmp_path: Path, config: dict[str, str], listens: bool) -> None:
    """A worker takes pushes where either address is configured."""
    worker = SimpleNamespace(reads_logs=True, worker="collector-0", mapper=Mapper(SOURCES), sources=SOURCES, telemetry=Telemetry())
    made = replace(GreylagConfig(), data_dir=str(tmp_path), **config)
    assert (push_receiver(made, worker, ManualClock(START_MS)) is not None) == listens
