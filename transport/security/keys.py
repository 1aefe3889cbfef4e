"""The CURVE keys of one run: made by its launcher, held by every process of the run, written nowhere but to a file of
mode 0600 and to the standard input of children.

Every process serves with the one server pair and connects with the one client pair, so whoever holds the keys is a
member of the run and whoever does not is nobody.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import zmq

KEY_CHARACTERS = 40
"""of a CURVE key as Z85 text: 32 bytes"""


@dataclass(frozen=True, slots=True)
class CurveKeys:
    """Two pairs as Z85 text. The secrets are left out of its repr, and so of logs and tracebacks."""

    server_public: str
    client_public: str
    server_secret: str = field(repr=False)
    client_secret: str = field(repr=False)

    def __post_init__(self) -> None:
        for name, text in asdict(self).items():
            if not isinstance(text, str) or len(text) != KEY_CHARACTERS:
                raise ValueError(f"{name} must be a CURVE key of {KEY_CHARACTERS} Z85 characters")  # never says which
        for role in ("server", "client"):
            if _public_of(getattr(self, f"{role}_secret")) != getattr(self, f"{role}_public"):
                raise ValueError(f"the {role}'s public and secret CURVE keys are no pair; use CurveKeys.make")

    @classmethod
    def make(cls) -> CurveKeys:
        """Fresh random pairs."""
        server_public, server_secret = (key.decode() for key in zmq.curve_keypair())
        client_public, client_secret = (key.decode() for key in zmq.curve_keypair())
        return cls(server_public, client_public, server_secret, client_secret)

    # --- keeping ----------------------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, str]:
        return asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, str]) -> CurveKeys:
        """Raises ValueError where they are no keys; the error does not repeat them."""
        try:
            return cls(**fields)
        except TypeError:
            raise ValueError(f"CURVE keys are a map of {', '.join(cls.__dataclass_fields__)}") from None

    def write(self, path: Path) -> None:
        """Write a new file of mode 0600, whatever the umask. Raises FileExistsError."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "w") as file:
            os.fchmod(descriptor, 0o600)
            json.dump(self.to_json(), file)

    @classmethod
    def read(cls, path: Path) -> CurveKeys:
        """Raises PermissionError for a file that others could have read or written, ValueError for other content."""
        with path.open() as file:
            status = os.fstat(file.fileno())
            if stat.S_IMODE(status.st_mode) & 0o077 or status.st_uid != os.geteuid():
                raise PermissionError(
                    f"{path} must belong to this user and be of mode 0600, it is of mode "
                    f"{stat.S_IMODE(status.st_mode):04o}: whoever read it can join the run; start a new run"
                )
            try:
                fields = json.load(file)
            except ValueError:
                raise ValueError(f"{path} holds no CURVE keys") from None
        if not isinstance(fields, dict):
            raise ValueError(f"{path} holds no CURVE keys")
        return cls.from_json(fields)

    # --- using ------------------------------------------------------------------------------------------------------

    def serve(self, socket: zmq.Socket[bytes], domain: str) -> None:
        """Before `bind`: only CURVE clients, and only those that the ZAP handler of `domain` admits. Where there is no
        such handler nobody is."""
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.CURVE_SECRETKEY, self.server_secret.encode())
        socket.setsockopt(zmq.ZAP_DOMAIN, domain.encode())
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)

    def join(self, socket: zmq.Socket[bytes]) -> None:
        """Before `connect`: as the run's client, to nobody but the run's servers."""
        socket.setsockopt(zmq.CURVE_SERVERKEY, self.server_public.encode())
        socket.setsockopt(zmq.CURVE_PUBLICKEY, self.client_public.encode())
        socket.setsockopt(zmq.CURVE_SECRETKEY, self.client_secret.encode())


def _public_of(secret: str) -> str | None:
    try:
        return zmq.curve_public(secret.encode()).decode()
    except (zmq.ZMQError, ValueError):
        return None
