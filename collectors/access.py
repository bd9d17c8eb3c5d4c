"""How a server lets one in: TLS and who asks, as `tls_config`, `basic_auth` and `authorization` say.

What is secret is a `Secret`: its text shows up in no error, log or repr.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from collectors.config_reader import Reader

ACCESS_KEYS = ("tls_config", "basic_auth", "authorization", "bearer_token", "bearer_token_file", "follow_redirects",
               "enable_http2")
TLS_VERSIONS = ("TLS10", "TLS11", "TLS12", "TLS13")


@dataclass(frozen=True, slots=True, repr=False)
class Secret:
    """A text that is shown to nobody."""

    text: str

    def __repr__(self) -> str:
        return "<secret>"


@dataclass(frozen=True, slots=True)
class Tls:
    """Files are PEM. server_name: for the check of the certificate, where the address is another. min_version: TLS12, ..."""

    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    server_name: str = ""
    insecure_skip_verify: bool = False
    min_version: str = ""

    @property
    def files(self) -> tuple[str, ...]:
        """The files that it is made of."""
        return tuple(one for one in (self.ca_file, self.cert_file, self.key_file) if one)


@dataclass(frozen=True, slots=True)
class Access:
    """scheme: `Basic`, `Bearer` or another one; empty = nobody has to say who asks. secret_file: read when it changes."""

    tls: Tls = Tls()
    scheme: str = ""
    user: str = ""
    secret: Secret = Secret("")
    secret_file: str = ""

    def anchored(self, folder: Path) -> Access:
        """With relative paths made relative to the folder."""

        def at(path: str) -> str:
            return str(folder / path) if path else ""

        tls = replace(self.tls, ca_file=at(self.tls.ca_file), cert_file=at(self.tls.cert_file), key_file=at(self.tls.key_file))
        return replace(self, tls=tls, secret_file=at(self.secret_file))


OPEN = Access()


def parse_access(reader: Reader) -> Access:
    """The access keys of a scrape job or a service discovery. Raises ConfigError, which never shows a secret.

    Redirects are refused and HTTP/1.1 is spoken, so `follow_redirects` and `enable_http2` may say what they want.
    """
    reader.flag("follow_redirects", True)
    reader.flag("enable_http2", True)
    tls = _tls(reader.within("tls_config"))
    basic, other = reader.within("basic_auth"), reader.within("authorization")
    given = [key for key in ("basic_auth", "authorization", "bearer_token", "bearer_token_file")
             if reader.data.get(key) is not None]
    if len(given) > 1:
        raise reader.fail(given[1], "a second way to say who asks", f"one of {' and '.join(given)} is allowed")
    if basic is not None:
        basic.check_keys(("username", "password", "password_file"), {})
        return Access(tls, "Basic", basic.word("username"), *_secret(basic, "password", "password_file"))
    if other is not None:
        return _authorization(other, tls)
    secret, file = _secret(reader, "bearer_token", "bearer_token_file")
    return Access(tls, "Bearer" if secret.text or file else "", "", secret, file)


def _authorization(reader: Reader, tls: Tls) -> Access:
    reader.check_keys(("type", "credentials", "credentials_file"), {})
    scheme = reader.word("type").strip() or "Bearer"
    if scheme.lower() == "basic":
        raise reader.fail("type", scheme, "basic_auth is there for this")
    if not scheme.isascii() or not scheme.isprintable() or " " in scheme:
        raise reader.fail("type", scheme, "one word such as Bearer is needed")
    secret, file = _secret(reader, "credentials", "credentials_file")
    return Access(tls, scheme if secret.text or file else "", "", secret, file)


def _secret(reader: Reader, key: str, file_key: str) -> tuple[Secret, str]:
    """The secret, or the file that holds it."""
    value, file = reader.data.get(key), reader.word(file_key)
    if value is not None and file:
        raise reader.fail(file_key, f"a {file_key} beside {key}", "one of them is allowed")
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if value is not None and not isinstance(value, str):
        raise reader.fail(key, "a value that is not shown here", "text is needed: put it in quotes")
    if value and not value.isprintable():
        raise reader.fail(key, "a value that is not shown here", "text without control characters is needed")
    return Secret(value or ""), file


def _tls(reader: Reader | None) -> Tls:
    if reader is None:
        return Tls()
    reader.check_keys(("ca_file", "cert_file", "key_file", "server_name", "insecure_skip_verify", "min_version"),
                      {"max_version": "remove it: Prometheus 2.42 has none",
                       **dict.fromkeys(("ca", "cert", "key", "ca_ref", "cert_ref", "key_ref"),
                                       "write it into a file and name that with ca_file, cert_file or key_file")})
    tls = Tls(reader.word("ca_file"), reader.word("cert_file"), reader.word("key_file"), reader.word("server_name"),
              reader.flag("insecure_skip_verify", False), reader.word("min_version"))
    if bool(tls.cert_file) != bool(tls.key_file):
        raise reader.fail("cert_file" if tls.cert_file else "key_file", "one file of a pair",
                          "cert_file and key_file are needed together")
    if tls.min_version and tls.min_version not in TLS_VERSIONS:
        raise reader.fail("min_version", tls.min_version, f"allowed are: {', '.join(TLS_VERSIONS)}")
    return tls
