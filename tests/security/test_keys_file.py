"""Keys from a file: how it reads, and what a server does that can't read it."""

import os
import pickle
import subprocess
from pathlib import Path

import pytest
from security.secure_server import refusal

from topics_server.keys import fingerprint, from_file, from_text
from topics_server.secret_files import SecretsError

OPS, SHOP = "ops-sekret", "shop-sekret"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "keys"
    file.write_text(f"# operators\n{OPS}\n\n  {SHOP}:read+write:orders.|carts.  \n")
    return file


def test_what_a_file_says(file: Path) -> None:
    keys = from_file(str(file))
    ops, shop = keys.find(OPS.encode()), keys.find(SHOP.encode())
    assert ops is not None
    assert shop is not None
    assert (ops.key_id, ops.prefixes) == (fingerprint(OPS.encode()), None)
    assert shop.prefixes == ("orders.", "carts.")
    assert keys.find(b"# operators") is None
    assert "sekret" not in repr(keys)
    assert pickle.loads(pickle.dumps(keys)).find(OPS.encode()) == ops  # bulk readers get them so


def test_one_key_has_one_id_wherever_it_stands(file: Path) -> None:
    listed = from_text(f"other:read,{SHOP}:read+write:orders.|carts.,{OPS}")
    assert listed is not None
    assert listed.principals > from_file(str(file)).principals
    command = f"printf %s {OPS} | sha256sum | cut -c1-12"  # as in docs/security.md
    assert subprocess.check_output(command, shell=True, text=True).strip() == fingerprint(OPS.encode())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "there is no key in it"),
        ("# none\n \n , ,\n", "there is no key in it"),
        (f"{OPS}\n# c\n{SHOP}:raed\n", "line 3: entry 1 has a scope"),
        (f"{SHOP}::|\n", "line 1: entry 1 has a list of prefixes without"),
        ("x" * (1 << 20) + "\n", "larger than"),
    ],
)
def test_files_that_are_refused(file: Path, text: str, says: str) -> None:
    file.write_text(text)
    with pytest.raises(SecretsError, match=says) as error:
        from_file(str(file))
    assert "sekret" not in str(error.value)


def test_odd_bytes(file: Path) -> None:
    file.write_bytes(b"\xef\xbb\xbf" + b"k\xff#y:read\r\nlast")
    keys = from_file(str(file))
    assert keys.find(b"k\xff#y") is not None
    assert keys.find(b"last") is not None
    assert len(keys) == 2


def test_a_pipe_is_no_file_of_keys(tmp_path: Path) -> None:
    """To open one waits for a writer, and a SIGHUP would stop the server."""
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(SecretsError, match=r"regular file|Is a directory"):
            from_file(str(path))


def test_a_server_that_must_not_start(tmp_path: Path, file: Path) -> None:
    absent = tmp_path / "absent"
    assert refusal(tmp_path, TOPICS_API_KEYS_FILE=absent).endswith(f"{absent}: No such file or directory")
    assert "both set" in refusal(tmp_path, TOPICS_API_KEYS_FILE=file, TOPICS_API_KEYS="k")
    file.write_text("# later\n")
    assert "there is no key in it" in refusal(tmp_path, TOPICS_API_KEYS_FILE=file)
