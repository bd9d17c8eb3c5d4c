"""Signatures of messages between Greylag and others, as the Standard Webhooks specification 1.0 has them, and secret files.

Signed is `<id>.<seconds>.<body>` with HMAC-SHA256; the header `webhook-signature` holds one or more `v1,<base64>`, apart by
spaces. A secret is base64, usually behind `whsec_`. A message is taken once, and only within the tolerance of its time.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping
from pathlib import Path

from core.errors import ConfigError, Unavailable

ID, TIMESTAMP, SIGNATURE = "webhook-id", "webhook-timestamp", "webhook-signature"
PREFIX = "whsec_"
TOLERANCE_SECONDS = 300  # what the specification's own libraries allow, either way
LEAST_BYTES, MOST_BYTES = 24, 64  # of a secret, by the specification
LARGEST_SECRET_FILE = 16 * 1024


def read_secret(path: str) -> str:
    """The text of a secret's file, without white space around it. Read at each use, so that a new secret needs no restart.
    Raises Unavailable, which names the file and never its content."""
    try:
        if Path(path).stat().st_size > LARGEST_SECRET_FILE:
            raise Unavailable(f"the secret's file {path} is larger than {LARGEST_SECRET_FILE} bytes")
        text = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise Unavailable(f"the secret's file {path} cannot be read ({why})") from None
    if not text:
        raise Unavailable(f"the secret's file {path} is empty")
    return text


def key_of(secret: str, where: str) -> bytes:
    """The key behind a secret of the specification. where: the secret's file, for the sentence. Raises ConfigError."""
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not LEAST_BYTES <= len(key) <= MOST_BYTES:
        raise ConfigError(where, "", "a secret of another form", f"{PREFIX} and the base64 of {LEAST_BYTES} to {MOST_BYTES} random bytes is needed")
    return key


def signature(key: bytes, message_id: str, seconds: int, body: bytes) -> str:
    """`v1,<base64 of HMAC-SHA256>`."""
    signed = f"{message_id}.{seconds}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()


def signed_headers(key: bytes, message_id: str, seconds: int, body: bytes) -> dict[str, str]:
    """The three headers of a signed message."""
    return {ID: message_id, TIMESTAMP: str(seconds), SIGNATURE: signature(key, message_id, seconds, body)}


def unsigned_reason(key: bytes, headers: Mapping[str, str], body: bytes, now_seconds: int) -> str | None:
    """Why a message is not to be believed, by name (`core.reasons.SIGNATURE_REASONS`); None = it is signed with the key and of
    now. headers: by lower-case name. Compared in constant time; whether the message came before is the caller's to know."""
    message_id, stamp, given = (headers.get(name, "") for name in (ID, TIMESTAMP, SIGNATURE))
    if not message_id or not given or not (stamp.isascii() and stamp.isdigit() and len(stamp) <= 12):
        return "unsigned"
    wanted = signature(key, message_id, int(stamp), body).encode()
    same = [hmac.compare_digest(one.encode(), wanted) for one in given.split(" ")[:16]]
    if not any(same):
        return "bad_signature"
    return None if abs(now_seconds - int(stamp)) <= TOLERANCE_SECONDS else "old_message"
