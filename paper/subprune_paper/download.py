"""The official files from their places, checksums compared, each file there whole or not at all.
Needs pooch.
"""

from __future__ import annotations

import tarfile
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from subprune.errors import DataError, OptionError, closest
from subprune.files import write_atomic

__all__ = ["OFFICIAL", "Official", "download"]


@dataclass(frozen=True)
class Official:
    """Files of a data set: where they lie, their MD5 sums, and what is taken out of an archive."""

    base: str
    files: Mapping[str, str]  # name: MD5 sum
    folder: str  # in the data folder
    members: tuple[str, ...] = ()  # of the archive; empty: the files themselves are wanted


OFFICIAL = {
    "mnist": Official(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        {
            "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
            "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
            "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
        },
        "mnist",
    ),
    "cifar10": Official(
        "https://www.cs.toronto.edu/~kriz/",
        {"cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530"},
        "cifar-10-batches-bin",
        tuple(
            f"cifar-10-batches-bin/{name}.bin"
            for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
        ),
    ),
}


def download(name: str, data_dir: str | Path, source: Official | None = None) -> list[Path]:
    """Fetch what is missing of a data set into the data folder; returns the files that were
    written.

    Args:
        name: "mnist" or "cifar10".
        data_dir: the folder that will hold `mnist/` or `cifar-10-batches-bin/`.
        source: other places than the official ones.
    """
    if source is None and name not in OFFICIAL:
        near = closest(name, OFFICIAL)
        raise OptionError(
            f"{name!r} cannot be downloaded; {near}allowed are {', '.join(OFFICIAL)}."
        )
    official = source or OFFICIAL[name]
    folder = Path(data_dir) / official.folder
    wanted = [Path(member).name for member in official.members] or list(official.files)
    if all((folder / file).is_file() for file in wanted):
        return []
    written = []
    with tempfile.TemporaryDirectory() as scratch:
        for file, md5 in official.files.items():
            fetched = _fetch(official.base + file, md5, Path(scratch))
            contents = (
                _members(fetched, official.members)
                if official.members
                else {file: fetched.read_bytes()}
            )
            written += [write_atomic(folder / part, content) for part, content in contents.items()]
    return written


def _fetch(url: str, md5: str, scratch: Path) -> Path:
    try:
        import pooch
    except ImportError as error:
        raise OptionError(
            "downloads need pooch; run pip install 'subprune-paper[full]'."
        ) from error
    pooch.get_logger().setLevel("WARNING")
    try:
        return Path(
            pooch.retrieve(url, known_hash=f"md5:{md5}", path=scratch, fname=url.rpartition("/")[2])
        )
    except (ValueError, OSError) as error:  # a wrong checksum; no connection
        raise DataError(
            f"{url} could not be downloaded as it should be ({error}); "
            "try again, or put the official file into the "
            "data folder yourself."
        ) from error


def _members(archive: Path, members: tuple[str, ...]) -> dict[str, bytes]:
    """The named files of a tar archive, by their last name; nothing else is unpacked."""
    contents = {}
    try:
        with tarfile.open(archive) as tar:
            for member in members:
                file = tar.extractfile(member)
                if file is None:
                    raise DataError(
                        f"{member} in {archive.name} is not a file; get the official archive."
                    )
                contents[Path(member).name] = file.read()
    except (tarfile.TarError, KeyError, EOFError) as error:
        raise DataError(f"{archive.name} is not the official archive: {error}.") from error
    return contents
