"""Pages near the edge of the formats: pieces thrown together, and good lines damaged in a few places."""

from __future__ import annotations

import random

PIECES = [
    b"a", b"b_total", b"c:d", b"x_bucket", b"_e", b"1", b"1.5", b"-2e3", b"NaN", b"+Inf", b"nan", b"0x1p3", b"1_0",
    b"1e400", b" ", b" ", b" ", b"  ", b"\t", b"{", b"}", b'{l="v"}', b'{l="v",m="w"}', b'{l="\\"",}', b'l="v"', b",",
    b"=", b'"', b"\\", b"\\n", b"\n", b"\n", b"\n", b"\r", b"\x00", b"\xff", "é".encode(), b"# HELP a x",
    b"# TYPE a gauge", b"# TYPE b counter", b"# UNIT a_s s", b"# EOF", b"# EOF\n", b"#", b"# ", b"HELP ", b"TYPE ",
    b"UNIT ", b"gauge", b"untyped", b"unknown", b' # {t="1"} 1', b" # {} 2 3", b"1700000000000", b"1700000000.123",
    b"-1", b"a 1\n", b'a{x="y"} 2\n', b'b_total{x="\\n"} 3\n', b"__name__", b'l=""', b"+", b".5", b"5.", b"e",
]  # fmt: skip
LINES = [
    b"a 1\n", b'a{x="y"} 2\n', b'b_total{x="y",z="w"} 3 4\n', b"# HELP a some help\n", b"# TYPE a gauge\n",
    b"# TYPE b counter\n", b'b_total{x="q\\"\\\\\\n"} 3 # {t="1"} 1 5\n', b"# UNIT a_s s\n", b"# c\n", b"\n", b"#c\n",
    b'x_bucket{le="+Inf"} 3\n', b'a{x="y",} 2\n', b'a { x = "y" , } 2 5 \n', b'a{x="u\nv"} 2\n', b'a{x=""} 7\n',
]  # fmt: skip
BYTES = b'\x00\n\r\t "\\{}=,#\xff\xc3a1_:+-.eEN'
ENDS = [*[b"# EOF\n"] * 6, b"# EOF", b"# EOF\x00", b"# E\x00OF\n", b"# EOF\n\n", b""]


def page(rng: random.Random, openmetrics: bool) -> bytes:
    """One page; with the same generator state always the same."""
    if rng.random() < 0.35:
        body = bytearray(b"".join(rng.choice(PIECES) for _ in range(rng.randint(1, 8))))
    else:
        body = bytearray(b"".join(rng.choice(LINES) for _ in range(rng.randint(1, 3))))
        for _ in range(rng.choice([0, 1, 1, 1, 2, 3])):
            _damage(rng, body)
    if openmetrics:
        body += rng.choice(ENDS)
    return bytes(body) or b"\n"


def _damage(rng: random.Random, body: bytearray) -> None:
    at, kind = rng.randrange(len(body) + 1), rng.random()
    if kind < 0.35:
        body[at:at] = rng.choice(PIECES)
    elif kind < 0.6:
        body[at : at + 1] = bytes([rng.choice(BYTES)])
    elif kind < 0.8:
        body[at : at + rng.randint(1, 3)] = b""
    elif kind < 0.9:
        body[at:at] = bytes([rng.randrange(256)])
    else:
        body[at:at] = b"\x00" * rng.randint(1, 2)
