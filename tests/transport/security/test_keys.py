"""A run's keys: in no log, in no error, in a file that nobody else reads."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

import pytest

from headrace.transport import CurveKeys


def test_a_file_of_keys_is_for_its_owner_alone(tmp_path: Path) -> None:
    keys, path = CurveKeys.make(), tmp_path / "keys"
    before = os.umask(0)
    try:
        keys.write(path)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600
    assert CurveKeys.read(path) == keys
    with pytest.raises(FileExistsError):
        keys.write(path)
    path.chmod(0o640)
    with pytest.raises(PermissionError, match="mode 0600, it is of mode 0640"):
        CurveKeys.read(path)


def test_secrets_show_in_no_text() -> None:
    keys = CurveKeys.make()
    for text in (repr(keys), str(keys), f"{keys}"):
        assert keys.server_secret not in text
        assert keys.client_secret not in text
    assert CurveKeys.from_json(json.loads(json.dumps(keys.to_json()))) == keys


def test_what_is_no_pair_of_keys_is_refused_without_repeating_it(tmp_path: Path) -> None:
    keys, other = CurveKeys.make(), CurveKeys.make()
    wrong = [
        {**keys.to_json(), "server_secret": other.server_secret},
        {**keys.to_json(), "client_secret": "short"},
        {**keys.to_json(), "client_secret": "\x00" * 40},
        {**keys.to_json(), "more": "x"},
    ]
    for fields in wrong:
        with pytest.raises(ValueError, match="CURVE") as error:
            CurveKeys.from_json(fields)
        assert not any(secret in str(error.value) for secret in fields.values())
    with pytest.raises(ValueError, match="no pair"):
        dataclasses.replace(keys, client_public=other.client_public)
    path = tmp_path / "keys"
    for content in ("not json", "[]"):
        path.write_text(content)
        path.chmod(0o600)
        with pytest.raises(ValueError, match="holds no CURVE keys"):
            CurveKeys.read(path)
