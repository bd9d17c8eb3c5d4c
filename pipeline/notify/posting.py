"""What the notifiers share: a POST and what its answer means, and cutting texts to a receiver's limits.

A 2xx is taken; 408, 425, 429 and 5xx are worth another try; any other answer is final. An address may itself be the secret
(Slack's is), so errors name the receiver and never its address.
"""

from __future__ import annotations

from collections.abc import Mapping

import httpx

from core.errors import Refused, Unavailable

WORTH_ANOTHER_TRY = frozenset({408, 425, 429})
LONGEST_RETRY_AFTER = 3600.0


class Busy(Unavailable):
    """The receiver said when to come again: `retry_after_seconds`."""

    def __init__(self, text: str, retry_after_seconds: float) -> None:
        super().__init__(text)
        self.retry_after_seconds = retry_after_seconds


class Poster:
    """POSTs to one receiver. name: as errors call it."""

    def __init__(self, name: str, timeout_seconds: float) -> None:
        self._name = name
        self._http = httpx.Client(timeout=timeout_seconds, follow_redirects=False)

    def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> None:
        """Returns once the receiver took it. Raises Unavailable, or Refused for good."""
        checked(self._name, self.ask("POST", url, body, headers))

    def ask(self, method: str, url: str, body: bytes | None = None, headers: Mapping[str, str] | None = None) -> httpx.Response:
        """The answer, whatever it is. Raises Unavailable where there is none."""
        try:
            return self._http.request(method, url, content=body, headers=dict(headers or {}))
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise Unavailable(f"{self._name}: no answer ({type(error).__name__})") from None


def checked(name: str, answer: httpx.Response) -> httpx.Response:
    """The answer where it is a 2xx. Raises Unavailable (Busy where it said when to come again), or Refused for good."""
    status = answer.status_code
    if status in WORTH_ANOTHER_TRY or status >= 500:
        after = answer.headers.get("retry-after", "")
        if after.isascii() and after.isdigit():
            raise Busy(f"{name}: HTTP {status}", min(float(after), LONGEST_RETRY_AFTER))
        raise Unavailable(f"{name}: HTTP {status}")
    if not 200 <= status < 300:
        said = " ".join(answer.text.split())[:200]
        raise Refused("receiver_refused", f"{name}: HTTP {status}" + (f", {said}" if said else ""))
    return answer


def cut(text: str, most: int) -> str:
    """At most so many characters; what was cut ends in an ellipsis."""
    return text if len(text) <= most else text[: max(0, most - 1)] + "…"


def cut_bytes(text: str, most: int) -> str:
    """At most so many bytes of UTF-8."""
    raw = text.encode()
    return text if len(raw) <= most else raw[: max(0, most - 3)].decode("utf-8", "ignore") + "…"
