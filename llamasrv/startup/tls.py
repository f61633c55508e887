"""Checks the TLS certificate and key before anything is started."""

from __future__ import annotations

import ssl

from llamasrv.config import Settings
from llamasrv.errors import ConfigError


def check(settings: Settings) -> None:
    """Raises ConfigError for files that are unreadable, not PEM, or do not match."""
    cert, key = settings.server.ssl_cert_file, settings.server.ssl_key_file
    if cert is None or key is None:
        return
    for name, path in (("ssl_cert_file", cert), ("ssl_key_file", key)):
        try:
            path.open("rb").close()
        except OSError as error:
            raise ConfigError(f"server.{name} = {str(path)!r}: {error.strerror}") from None
    try:
        # With an empty password the library does not prompt for the one of an encrypted key.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, password="")
    except (ssl.SSLError, ValueError) as error:
        reason = getattr(error, "reason", None) or str(error)
        raise ConfigError(
            f"server.ssl_cert_file = {str(cert)!r}: not a PEM certificate that matches the key {str(key)!r} ({reason})"
        ) from None
