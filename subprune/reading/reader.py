"""`read_data`: what lies on disk as something `prune` takes, with labels where the source has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from subprune.data.samples import LABEL_KEYS
from subprune.data.sources import draw
from subprune.errors import DataError, OptionError, SubpruneError, closest
from subprune.keywords import must_be
from subprune.messages import Message, listed
from subprune.reading.arrays import IMAGES, decode_image, read_arrays, read_image
from subprune.reading.pixels import Pixels, Prepare, output_count
from subprune.reading.records import FILES, Table, is_dataset, read_dataset, read_table
from subprune.reading.sentences import (
    SUFFIXES,
    as_tokenizer,
    is_causal,
    read_lines,
    sentences,
    token_row,
    windows,
)

__all__ = ["ARRAYS", "KINDS", "Reader", "from_path", "read_data", "refuse_tensors"]

ARRAYS = (".npy", ".npz", ".safetensors")
KINDS = (
    ".npy, .npz or .safetensors file, a text (.txt) or a table (.csv, .tsv, .jsonl, .parquet), a "
    "folder of images, or one of a Hugging Face data set"
)
"""What can be read, in words."""

_CALIBRATION = ("data", "--data")  # the option that all others refer to
_MOST_FILES = 100_000
_TEXT_COLUMNS = ("text", "sentence", "content", "document", "review", "question")
_IMAGE_COLUMNS = ("image", "img", "picture")


def read_data(
    path: str | Path,
    model: nn.Module | None = None,
    *,
    n_samples: int | None = 512,
    seed: int = 0,
    resize: int | None = None,
    mean: str | float | Sequence[float] | None = None,
    std: str | float | Sequence[float] | None = None,
    prepare: Prepare | None = None,
    tokenizer: Any = None,
    column: str | None = None,
    context: int | None = None,
) -> Any:
    """Inputs from a file or folder, with labels where it has them, as `subprune.prune` takes them.

    Args:
        path: a .npy, .npz or .safetensors file; a text or a table of texts or numbers (.txt, .csv,
            .tsv, .jsonl, .parquet); a folder of images, whose subfolders are classes; or a folder
            that ``save_to_disk`` of the datasets library wrote.
        model: the model that will see them: texts are read as it takes them, and folders are
            labels where it has as many outputs.
        n_samples: how many inputs are drawn, by seed; None takes all.
        seed: seed for the draw.
        resize: height and width that images are brought to.
        mean: subtracted from each channel of images, such as ``(0.485, 0.456, 0.406)``.
        std: what each channel is then divided by.
        prepare: function from an image [channels, height, width], from 0 to 1, to the model's
            input, instead of `resize`, `mean` and `std`.
        tokenizer: for texts: one of the transformers library, or the folder of one.
        column: the column of a table that holds the texts or images; by default found by its name.
        context: tokens of a piece of text, 256 by default.

    Returns:
        A tensor, a tuple (inputs, labels), or a list of batches.
    """
    return Reader(
        path=str(path),
        model=model,
        n_samples=n_samples,
        seed=seed,
        pixels=Pixels(resize, mean, std, prepare),
        tokenizer=tokenizer,
        column=column,
        context=context,
    ).read()


_ASKED = {"resize", "mean", "std", "tokenizer", "column", "context"}


def from_path(
    data: Any,
    model: nn.Module | None,
    n_samples: int | str | None = None,
    seed: int = 0,
    remark: Callable[[str], object] = lambda text: None,
) -> Any:
    """What a path stands for; anything else as it is. Functions that take data take paths by this;
    what they cannot be told about them is left to `read_data`.
    """
    if not isinstance(data, str | Path):
        return data
    try:
        count = n_samples if isinstance(n_samples, int) else None  # not tokens
        source = Reader(path=str(data), model=model, n_samples=count, seed=seed, remark=remark)
        return source.read()
    except SubpruneError as error:
        if not _ASKED & error.options.keys():
            raise
        words = "{problem} (an option of subprune.read_data, whose result can be given here)"
        raise type(error)(Message(words, problem=error.message)) from error


def refuse_tensors(option: str, path: str) -> None:
    """Say what to do with tensors that torch.save wrote: reading pickles can run code."""
    if Path(path).suffix in (".pt", ".pth") and Path(path).is_file():
        raise DataError(
            f"{option} {path!r} looks like a file of torch.save, which is not read as data; save "
            "the tensors again, by numpy.savez('inputs.npz', inputs=x.numpy())"
        )


@dataclass(frozen=True, kw_only=True)
class Reader:
    """A source, and how it is read."""

    path: str
    model: nn.Module | None = None
    n_samples: int | None = 512
    seed: int = 0
    pixels: Pixels = field(default_factory=Pixels)
    tokenizer: Any = None
    column: str | None = None
    context: int | None = None
    option: str = "data"  # that named the source, for messages
    remark: Callable[[str], object] = lambda text: None  # what is done with remarks

    def __post_init__(self) -> None:
        for name, value, least in (("n_samples", self.n_samples, 1), ("context", self.context, 2)):
            if value is not None and not (type(value) is int and value >= least):
                raise OptionError(must_be(name, f"a whole number from {least}", value))

    def read(self) -> Any:
        """Something `prune` takes, with labels where the source has them."""
        path = Path(self.path)
        if path.is_dir():
            return self._table(read_dataset(path)) if is_dataset(path) else self._folder(path)
        if path.suffix not in (*ARRAYS, *SUFFIXES, *FILES):
            refuse_tensors(self.option, self.path)
            absent = "" if path.exists() else ": there is no such file or folder"
            raise DataError(f"{self.option} {self.path!r} cannot be read{absent}; give a {KINDS}")
        if not path.is_file():
            raise DataError(
                f"{self.option} {self.path!r} is not a file; check the path, which starts at "
                f"{str(Path.cwd())!r}"
            )
        if path.suffix in ARRAYS:
            return self._arrays(path)
        if path.suffix in SUFFIXES:
            return self._text(read_lines(path))
        return self._table(read_table(path))

    def refuse_pixels(self, why: str) -> None:
        """Options that would be ignored silently are refused; with other data than the calibration
        data they may be meant for that.
        """
        if self.pixels.given and self.option in _CALIBRATION:
            words = "{names} cannot be applied to {option} {path}, {why}; omit it"
            names = listed(self.pixels.given, " and ")
            raise OptionError(
                Message(words, names=names, option=self.option, path=self.path, why=why)
            )

    def refuse_text(self, why: str = "which is not text", *, columns: bool = False) -> None:
        """The same for what is said of texts, and of the columns of what has none."""
        asked = {"tokenizer": self.tokenizer, "context": self.context}
        asked |= {} if columns else {"column": self.column}
        given = [name for name, value in asked.items() if value is not None]
        if given and self.option in _CALIBRATION:
            words = "{names} cannot be applied to {option} {path}, {why}; omit it"
            names = listed(given, " and ")
            raise OptionError(
                Message(words, names=names, option=self.option, path=self.path, why=why)
            )

    # ---- arrays ----------------------------------------------------------------------------------

    def _arrays(self, path: Path) -> Any:
        """One array is the input; several are keyword arguments of the model; labels are known by
        their name.
        """
        self.refuse_text()
        arrays = read_arrays(path, self.n_samples, self.seed)
        labels = next((arrays.pop(n) for n in LABEL_KEYS if n in arrays and len(arrays) > 1), None)
        sizes = {x.shape[0] if x.ndim else 0 for x in arrays.values()}
        if not all(x.ndim for x in arrays.values()):
            single = ", ".join(n or "the array" for n, x in arrays.items() if not x.ndim)
            raise DataError(
                f"{path} holds a single number where inputs belong ({single}); each array needs one "
                "row per input"
            )
        if sizes == {0}:
            raise DataError(
                f"{path} holds no inputs: its arrays have no rows; save one row per input"
            )
        if labels is not None and (labels.ndim < 1 or {labels.shape[0]} != sizes):
            raise DataError(
                f"{path} has labels of shape {tuple(labels.shape)} for {sizes.pop()} inputs; give "
                "one label per input"
            )
        if len(arrays) > 1:
            names = ", ".join(arrays)
            self.refuse_pixels(f"whose arrays {names} are passed on as they are")
            item = {n: _numbers(x) for n, x in arrays.items()}
            return [item if labels is None else {**item, "labels": _targets(labels)}]
        inputs = self.pixels.of_array(_numbers(next(iter(arrays.values()))), self._named)
        return inputs if labels is None else (inputs, _targets(labels))

    @property
    def _named(self) -> str:
        return f"{self.option} {self.path}"

    # ---- images ----------------------------------------------------------------------------------

    def _folder(self, path: Path) -> Any:
        """Images below a folder, drawn by seed; where all lie in subfolders, the sorted names of
        these are the classes.
        """
        self.refuse_text()
        files = [
            file
            for file in sorted(path.rglob("*"))
            if file.suffix.lower() in IMAGES and file.is_file() and not file.name.startswith(".")
        ]
        if not files:
            raise DataError(
                f"{self.option} {path} is a folder without images ({', '.join(IMAGES)}); other data is "
                "given by the name of its file, or by a folder of a Hugging Face data set, which "
                "save_to_disk writes"
            )
        rows = draw(len(files), min(self.n_samples or _MOST_FILES, _MOST_FILES), self.seed)
        chosen = files if rows is None else [files[i] for i in rows]
        images = ((str(file.relative_to(path)), read_image(file)) for file in chosen)
        inputs = self.pixels.of_images(images, str(path))
        inside = [file.relative_to(path).parts for file in files]
        classes = sorted({parts[0] for parts in inside if len(parts) > 1})
        if any(len(parts) < 2 for parts in inside) or len(classes) < 2:
            return inputs
        if self.model is not None and (n := output_count(self.model, inputs)) != len(classes):
            self.remark(
                f"the {len(classes)} folders in {path} are not used as labels, since the model has "
                f"{n or 'no'} outputs for each image"
            )
            return inputs
        labels = [classes.index(file.relative_to(path).parts[0]) for file in chosen]
        return inputs, torch.tensor(labels)

    # ---- tables ----------------------------------------------------------------------------------

    def _table(self, table: Table) -> Any:
        """Texts, images or numbers of a table, with their labels."""
        label = next((name for name in LABEL_KEYS if name in table and name != self.column), None)
        others = [name for name in table if name != label]
        named = self._content(table, others)
        first = table[named][0] if named else None
        if isinstance(first, str):
            self._refuse_words(named, first)
            return self._text(table[named], table.get(label or ""))
        self.refuse_text(columns=True)
        chosen = draw(len(next(iter(table.values()))), self.n_samples, self.seed)
        rows = range(len(next(iter(table.values())))) if chosen is None else chosen
        labels = _class_numbers([table[label][i] for i in rows], self.model) if label else None
        if isinstance(first, Mapping):  # an image: its bytes, and where they came from
            images = ((f"row {i}", decode_image(_bytes(table[named][i]), f"row {i}")) for i in rows)
            inputs: Any = self.pixels.of_images(images, self.path)
        else:
            self.refuse_pixels("whose columns are numbers")
            inputs = _features({name: [table[name][i] for i in rows] for name in others}, self.path)
        return inputs if labels is None else (inputs, labels)

    def _refuse_words(self, column: str, cell: str) -> None:
        """Without a tokenizer, words are more likely in the way than meant to be read."""
        if self.tokenizer is None:
            words = (
                "column {column!r} of {path} holds texts, such as {cell!r}: omit it from the file, "
                "or, for a model that reads texts, give the folder of its tokenizer as {tokenizer=}"
            )
            raise OptionError(Message(words, column=column, path=self.path, cell=cell[:40]))

    def _content(self, table: Table, others: Sequence[str]) -> str:
        """The column that holds texts or images; empty where all hold numbers."""
        if self.column is not None:
            if self.column not in table:
                words = "{column=}: {hint}{path} has the columns {columns}"
                hint, columns = closest(self.column, table), ", ".join(table)
                raise OptionError(
                    Message(words, column=self.column, hint=hint, path=self.path, columns=columns)
                )
            return self.column
        kinds = {name: type(table[name][0]) for name in others}
        texts = [name for name, kind in kinds.items() if issubclass(kind, str | Mapping)]
        if len(texts) < 2:
            return texts[0] if texts else ""
        usual = [name for name in (*_TEXT_COLUMNS, *_IMAGE_COLUMNS) if name in texts]
        if usual:
            return usual[0]
        words = "{path} has several columns of texts, {found}: say which with {column=}"
        raise OptionError(Message(words, path=self.path, found=", ".join(texts)))

    # ---- texts -----------------------------------------------------------------------------------

    def _text(self, lines: Sequence[Any], labels: Sequence[Any] | None = None) -> Any:
        """Windows of tokens for a causal language model, sentences with padding for others."""
        self.refuse_pixels("which is text")
        if self.model is None:
            raise OptionError(Message("a text is read as the model takes it: give {model=}"))
        known = [i for i, line in enumerate(lines) if isinstance(line, str) and line.strip()]
        if not known:
            raise DataError(f"{self._named} has no text in it")
        read = as_tokenizer(self.tokenizer)
        texts = [lines[i] for i in known]
        if is_causal(self.model, read, texts[0]):
            row = token_row(texts, read)
            return windows(row, self.context, self.model, self.n_samples, self.seed)
        rows = draw(len(texts), self.n_samples, self.seed)
        rows = list(range(len(texts))) if rows is None else rows
        numbers = None
        if labels is not None:
            numbers = _class_numbers([labels[known[i]] for i in rows], self.model)
            if numbers is None:
                self.remark(f"the labels of {self.path} are not used: the model does not know them")
        return sentences([texts[i] for i in rows], read, self.context, numbers)


def _bytes(cell: Any) -> bytes:
    content = cell.get("bytes") if isinstance(cell, Mapping) else None
    if not isinstance(content, bytes):
        raise DataError(
            "an image of the table is given by a path, not by its bytes; give the folder of images"
        )
    return content


def _features(columns: Mapping[str, Sequence[Any]], path: str) -> Any:
    """Columns of numbers as [rows, columns]; columns of lists as the model's keyword arguments."""
    wrong = [
        name
        for name, values in columns.items()
        if any(isinstance(v, str) or v is None for v in values)
    ]
    if wrong:
        raise DataError(
            f"column {wrong[0]!r} of {path} does not hold a number in every row; omit it from the "
            "file, or fill the gaps"
        )
    try:
        tensors = {name: _numbers(torch.tensor(values)) for name, values in columns.items()}
    except (ValueError, TypeError, RuntimeError) as error:
        raise DataError(
            f"the columns {', '.join(columns)} of {path} cannot be read as numbers, one row for "
            f"each input: {str(error).splitlines()[0]}"
        ) from error
    if all(x.ndim == 1 for x in tensors.values()):
        return torch.stack([x.float() for x in tensors.values()], 1)
    return [tensors] if len(tensors) > 1 else next(iter(tensors.values()))


def _class_numbers(labels: Sequence[Any], model: nn.Module | None) -> Tensor | None:
    """Labels as numbers: their own, or those that the model's config gives their names."""
    if all(isinstance(x, int | float) and not isinstance(x, bool) for x in labels):
        return _targets(torch.tensor(labels))
    names = getattr(getattr(model, "config", None), "label2id", None) or {}
    if all(isinstance(x, str) and x in names for x in labels):
        return torch.tensor([int(names[x]) for x in labels])
    return None


def _targets(labels: Tensor) -> Tensor:
    """Class numbers as int64, also if saved as fractions; other fractions are numbers to be met."""
    whole = labels.ndim == 1 and bool((labels == labels.round()).all())
    return labels.long() if whole or not labels.is_floating_point() else labels.float()


def _numbers(x: Tensor) -> Tensor:
    """Pixels (bytes) as 0 … 1, other whole numbers as int64, fractions as float32."""
    if x.dtype == torch.uint8 and x.ndim >= 3:
        return x.float() / 255
    if x.dtype == torch.bool:
        return x
    return x.float() if x.is_floating_point() else x.long()
