"""Tables of records: CSV, TSV, JSON lines, Parquet, and data sets of Hugging Face on disk.

A table is a dict of columns. Nothing in a file is ever run; sizes are bounded before memory is
taken.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from subprune.errors import DataError, OptionError

__all__ = ["FILES", "is_dataset", "read_dataset", "read_table"]

Table = dict[str, list[Any]]

_MOST_BYTES = 2**33
_MOST_CELL = 2**24  # characters of one cell


def read_table(path: Path) -> Table:
    """The columns of a file, by name."""
    if path.stat().st_size > _MOST_BYTES:
        raise DataError(f"{path} is too large to be read at once; give a part of it")
    try:
        table = FILES[path.suffix](path)
    except (DataError, OptionError):
        raise
    except Exception as error:  # readers raise all sorts of things on damaged files
        text = str(error).strip().split("\n")[0][:200]
        raise DataError(
            f"{path} is damaged or not what its name says ({type(error).__name__}: {text}); save "
            "or download it again"
        ) from error
    return _checked(table, path)


def _checked(table: Table, path: Path) -> Table:
    lengths = {name: len(values) for name, values in table.items()}
    if not table or not max(lengths.values()):
        raise DataError(f"{path} holds no record; it needs at least one")
    if len(set(lengths.values())) > 1:
        raise DataError(f"{path} has columns of different length: {lengths}")
    return table


def _read_csv(path: Path) -> Table:
    csv.field_size_limit(_MOST_CELL)
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = csv.reader(file, delimiter="\t" if path.suffix == ".tsv" else ",")
        header = next(rows, [])
        if not header:
            raise DataError(f"{path} is empty; its first line names the columns")
        if len(set(header)) < len(header):
            raise DataError(
                f"{path} needs a first line with a different name for every column, got {header}"
            )
        columns: list[list[str]] = [[] for _ in header]
        for number, row in enumerate(rows, 2):
            if not row:
                continue
            if len(row) != len(header):
                raise DataError(
                    f"line {number} of {path} has {len(row)} cells, the first line {len(header)}; "
                    "give every line as many"
                )
            for column, cell in zip(columns, row, strict=True):
                column.append(cell)
    _refuse_semicolons(path, header, columns)
    return {name: _numbers(values) for name, values in zip(header, columns, strict=True)}


def _refuse_semicolons(path: Path, header: Sequence[str], columns: Sequence[Sequence[str]]) -> None:
    """One column with as many semicolons in every line is a table of another kind."""
    semicolons = header[0].count(";")
    if (
        len(header) == 1
        and semicolons
        and all(cell.count(";") == semicolons for cell in columns[0])
    ):
        raise DataError(
            f"the cells of {path} seem to be separated by semicolons, its first line is "
            f"{header[0][:60]!r}; save it with commas, or as .tsv with tabs"
        )


def _numbers(cells: Sequence[str]) -> list[Any]:
    """Whole numbers or fractions, where all cells are, with None for gaps; else the texts."""
    for kind in (int, float):
        try:
            numbers = [kind(cell) if cell.strip() else None for cell in cells]
        except ValueError:
            continue
        if any(number is not None for number in numbers):
            return numbers
    return list(cells)


def _read_json_lines(path: Path) -> Table:
    table: Table = {}
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except json.JSONDecodeError as error:
                raise DataError(
                    f"line {number} of {path} is not JSON ({error.msg} at character {error.pos}); "
                    "every line has to be one object"
                ) from error
            if not isinstance(record, dict) or (table and record.keys() != table.keys()):
                raise DataError(
                    f"line {number} of {path} must be an object with the keys of the first"
                )
            for key, value in record.items():
                table.setdefault(key, []).append(value)
    return table


def _arrow() -> Any:
    try:
        import pyarrow
    except ImportError as error:
        raise OptionError(
            "Parquet files and data sets of Hugging Face are read with pyarrow, which is not "
            "installed: pip install 'subprune[tables]', or give a .csv or .jsonl file"
        ) from error
    return pyarrow


def _read_parquet(path: Path) -> Table:
    _arrow()
    from pyarrow import parquet

    return {name: column.to_pylist() for name, column in _columns(parquet.read_table(path))}


FILES: Mapping[str, Callable[[Path], Table]] = {
    ".csv": _read_csv,
    ".tsv": _read_csv,
    ".jsonl": _read_json_lines,
    ".parquet": _read_parquet,
}
"""Readers by the ending of a file's name."""


# ---- data sets on disk ---------------------------------------------------------------------------

_SPLITS, _INFO, _STATE = "dataset_dict.json", "dataset_info.json", "state.json"


def is_dataset(folder: Path) -> bool:
    """Whether ``save_to_disk`` of the datasets library wrote the folder."""
    if (folder / _SPLITS).is_file():
        return True
    return (folder / _INFO).is_file() and (folder / _STATE).is_file()


def read_dataset(folder: Path) -> Table:
    """The columns of a data set on disk; of several splits, that for training."""
    pyarrow = _arrow()
    if (folder / _SPLITS).is_file():
        splits = sorted(f.name for f in folder.iterdir() if (f / _STATE).is_file())
        if "train" not in splits:
            raise DataError(
                f"{folder} holds several splits and none called 'train'; give the folder of one: "
                f"{', '.join(splits)}"
            )
        folder = folder / "train"
    table: Table = {}
    for file in sorted(folder.glob("*.arrow")):
        try:
            with pyarrow.memory_map(str(file)) as source:
                content = pyarrow.ipc.open_stream(source).read_all()
                for name, column in _columns(content):
                    table.setdefault(name, []).extend(column.to_pylist())
        except (pyarrow.ArrowException, OSError) as error:
            text = str(error).strip().split("\n")[0][:200]
            raise DataError(f"{file} is damaged: {type(error).__name__}: {text}") from error
    return _checked(table, folder)


def _columns(table: Any) -> list[tuple[str, Any]]:
    return [(name, table.column(name)) for name in table.column_names]
