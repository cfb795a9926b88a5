"""Results in one SQLite file: a row per cell, written whole or not at all, never overwritten once
finished.

Several runs may work on one file. Each holds a lock on a small file of its own; a run that was
killed has lost its lock, and what it had claimed is free again at once, with no time-outs.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from subprune.errors import DataError
from subprune_paper.grid import Cell

__all__ = ["COLUMNS", "FINAL", "Outcome", "Row", "Store"]

FINAL = ("done", "infeasible")
"""States that stay; a failed cell may be tried again."""

SETTINGS = {
    "model": "TEXT",
    "dataset": "TEXT",
    "method": "TEXT",
    "reweight": "INTEGER",
    "batchnorm": "TEXT",
    "target": "TEXT",
    "value": "REAL",
    "finetune": "TEXT",
    "seed": "INTEGER",
    "rule": "TEXT",
}
RESULTS = {
    "status": "TEXT",
    "correct": "INTEGER",
    "images": "INTEGER",
    "top1": "REAL",
    "compression": "REAL",
    "speedup": "REAL",
    "parameters": "INTEGER",
    "flops": "INTEGER",
    "kept": "TEXT",
    "note": "TEXT",
}
TIMINGS = {
    "budget_seconds": "REAL",
    "prune_seconds": "REAL",
    "finetune_seconds": "REAL",
    "test_seconds": "REAL",
    "finished": "TEXT",
    "attempts": "INTEGER",
}
OTHER = {"experiment": "TEXT", "configuration": "TEXT", "versions": "TEXT"}
COLUMNS = {"key": "TEXT PRIMARY KEY", **SETTINGS, **RESULTS, **TIMINGS, **OTHER}

Row = dict[str, Any]


@dataclass(frozen=True)
class Outcome:
    """What became of a cell: its status and whatever was measured, by column."""

    status: str  # "done", "infeasible" or "failed"
    values: Mapping[str, Any]


class Store:
    """The results file; use as a context manager."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.owner = secrets.token_hex(8)
        self._lock: sqlite3.Connection | None = None
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._db = _connect(self.path)
            with self._write():
                columns = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
                self._db.execute(f"CREATE TABLE IF NOT EXISTS cells ({columns})")
                self._db.execute(
                    "CREATE TABLE IF NOT EXISTS claims (key TEXT PRIMARY KEY, owner TEXT NOT NULL)"
                )
        except (sqlite3.DatabaseError, OSError) as error:
            raise DataError(
                f"{self.path} cannot be used as a results file ({error}); give another --output."
            ) from error

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give claims back and close the file."""
        if self._lock is not None:
            with self._write():
                self._db.execute("DELETE FROM claims WHERE owner = ?", (self.owner,))
            self._lock.close()
            self._lock = None
            self._lock_file(self.owner).unlink(missing_ok=True)
        self._db.close()

    def rows(self, keys: Iterable[str] | None = None) -> list[Row]:
        """All rows, or those of these cells, in a fixed order."""
        rows = [dict(row) for row in self._db.execute("SELECT * FROM cells ORDER BY key")]
        wanted = None if keys is None else set(keys)
        return [row for row in rows if wanted is None or row["key"] in wanted]

    def finished(self) -> set[str]:
        """Keys of the cells that need not be run any more."""
        marks = ",".join("?" * len(FINAL))
        return {
            row[0]
            for row in self._db.execute(f"SELECT key FROM cells WHERE status IN ({marks})", FINAL)
        }

    def record(
        self, cell: Cell, outcome: Outcome, experiment: str, versions: Mapping[str, str]
    ) -> bool:
        """Write a cell's row; False if it was finished before, which is left as it is."""
        settings = cell.to_dict()
        row = {
            "key": cell.key,
            **{name: settings[name] for name in SETTINGS},
            **outcome.values,
            "status": outcome.status,
            "experiment": experiment,
            "configuration": json.dumps(settings, sort_keys=True),
            "versions": json.dumps(dict(versions), sort_keys=True),
        }
        names = list(row)
        marks, others = ", ".join(f":{n}" for n in names), [n for n in COLUMNS if n != "key"]
        update = ", ".join(f"{n} = excluded.{n}" for n in others)
        final = ", ".join(f"'{status}'" for status in FINAL)
        with self._write():
            changed = self._db.execute(
                f"INSERT INTO cells ({', '.join(names)}) VALUES ({marks}) ON CONFLICT(key) DO "
                f"UPDATE SET {update} "
                f"WHERE cells.status NOT IN ({final})",
                row,
            ).rowcount
            self._db.execute("DELETE FROM claims WHERE key = ?", (cell.key,))
        return changed > 0

    def claim(self, keys: Sequence[str]) -> set[str]:
        """Those of the keys that are now ours to run: not finished,
        and claimed by no living run.
        """
        with self._write():
            # Locks are made here alone, by one run at a time: one without a claim, and without a
            # process, was left by a run that was killed in between.
            self._hold_lock()
            open_ = set(keys) - self.finished()
            taken = dict(self._db.execute("SELECT key, owner FROM claims").fetchall())
            others = {*taken.values(), *self._lock_owners()} - {self.owner}
            dead = {owner for owner in others if not self._alive(owner)}
            for owner in dead:
                self._db.execute("DELETE FROM claims WHERE owner = ?", (owner,))
            free = {key for key in open_ if taken.get(key, self.owner) in {self.owner, *dead}}
            self._db.executemany(
                "INSERT OR REPLACE INTO claims (key, owner) VALUES (?, ?)",
                [(key, self.owner) for key in sorted(free)],
            )
        for owner in dead:
            for suffix in ("", "-journal"):
                path = self._lock_file(owner)
                path.with_name(path.name + suffix).unlink(missing_ok=True)
        return free

    def _lock_owners(self) -> set[str]:
        """The runs that locks are there of."""
        start = self._lock_file("").name
        names = [path.name for path in self.path.parent.iterdir()]
        return {
            n.removeprefix(start).removesuffix("-journal") for n in names if n.startswith(start)
        }

    @contextlib.contextmanager
    def _write(self) -> Iterator[None]:
        """One transaction, from the start the only writer."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def _lock_file(self, owner: str) -> Path:
        return self.path.with_name(f"{self.path.name}-run-{owner}")

    def _hold_lock(self) -> None:
        """A lock that the operating system takes away when this process ends, however it ends."""
        if self._lock is None:
            self._lock = sqlite3.connect(self._lock_file(self.owner), isolation_level=None)
            self._lock.execute("BEGIN EXCLUSIVE")

    def _alive(self, owner: str) -> bool:
        path = self._lock_file(owner)
        if not path.exists():
            return False
        probe = sqlite3.connect(path, isolation_level=None, timeout=0)
        try:
            probe.execute("BEGIN EXCLUSIVE")
            probe.execute("ROLLBACK")
        except sqlite3.OperationalError:
            return True
        finally:
            probe.close()
        return False


_TRIES, _PAUSE = 200, 0.05  # times, seconds


def _with_patience(db: sqlite3.Connection, statement: str) -> None:
    """Execute a statement that does not wait by itself while others create the file."""
    for left in reversed(range(_TRIES)):
        try:
            db.execute(statement)
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or not left:
                raise
            time.sleep(_PAUSE)


def _connect(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(os.fspath(path), timeout=60, isolation_level=None)
    db.row_factory = sqlite3.Row
    _with_patience(db, "PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    return db
