"""Downloads, against a server on this machine."""

from __future__ import annotations

import functools
import hashlib
import http.server
import io
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from subprune.errors import DataError, OptionError
from subprune_paper.download import Official, download

pytest.importorskip("pooch", reason="pooch is not installed (extra subprune-paper[full])")

CONTENT = b"not really images"


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Official]:
    """A server with a plain file and an archive; yields the description of the archive."""
    root = tmp_path / "served"
    root.mkdir()
    (root / "plain.gz").write_bytes(CONTENT)
    with tarfile.open(root / "all.tar.gz", "w:gz") as tar:
        for name in ("box/one.bin", "box/other.bin", "../outside.bin"):
            entry = tarfile.TarInfo(name)
            entry.size = len(CONTENT)
            tar.addfile(entry, io.BytesIO(CONTENT))
    found = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Quiet, directory=str(root))
    )
    thread = threading.Thread(target=found.serve_forever)
    thread.start()
    md5 = hashlib.md5((root / "all.tar.gz").read_bytes()).hexdigest()
    yield Official(
        f"http://127.0.0.1:{found.server_port}/", {"all.tar.gz": md5}, "box", ("box/one.bin",)
    )
    found.shutdown()
    thread.join()
    found.server_close()


def test_archive_and_plain_files_arrive_once_and_nothing_else(
    server: Official, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    assert download("any", data, server) == [data / "box" / "one.bin"]
    assert download("any", data, server) == [], "what is there is not fetched again"
    plain = replace(server, files={"plain.gz": hashlib.md5(CONTENT).hexdigest()}, members=())
    download("any", data, plain)
    assert {p.name: p.read_bytes() for p in data.rglob("*") if p.is_file()} == {
        "one.bin": CONTENT,
        "plain.gz": CONTENT,
    }


def test_a_wrong_checksum_or_a_missing_file_leaves_nothing_behind(
    server: Official, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    for bad in (
        replace(server, files={"all.tar.gz": "0" * 32}),
        replace(server, files={"no.tar.gz": "0" * 32}),
        replace(server, members=("box/none.bin",)),
    ):
        with pytest.raises(DataError, match=r"tar\.gz"):
            download("any", data, bad)
    assert not data.exists()


def test_unknown_data_sets_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="did you mean 'cifar10'"):
        download("cifar100", tmp_path)
