"""A small client of Greylag's own API: for the command line, the demo and the explorer."""

from __future__ import annotations

from typing import Any

import httpx

from core.errors import BadInput, Unavailable


class Client:
    """JSON over HTTP on the owner's address. Raises Unavailable where nobody answers, BadInput where the API says 4xx."""

    def __init__(self, url: str, timeout_seconds: float = 10.0) -> None:
        self.url = url.rstrip("/")
        self._http = httpx.Client(base_url=self.url, timeout=timeout_seconds)

    def get(self, path: str, **params: Any) -> Any:
        """GET of a JSON document; parameters that are None are left out."""
        return self._ask("GET", path, params={k: v for k, v in params.items() if v is not None})

    def post(self, path: str, body: Any = None) -> Any:
        """POST of a JSON document."""
        return self._ask("POST", path, json=body)

    def _ask(self, method: str, path: str, **kwargs: Any) -> Any:
        try:
            answer = self._http.request(method, path, **kwargs)
        except httpx.HTTPError as error:
            raise Unavailable(f"Greylag does not answer at {self.url}: {error}") from None
        if answer.status_code >= 500:
            raise Unavailable(f"Greylag at {self.url} failed on {path}: HTTP {answer.status_code}")
        if answer.status_code >= 400:
            raise BadInput(f"{self.url}{path}", "", answer.text, f"the API answered HTTP {answer.status_code}")
        return answer.json()

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()
