"""What a long call has finished, in files, so that the same call goes on from there.

A walk is a list of steps: a group decided, or a layer refitted that lost no input. Each leaves a
file with the tensors that it replaced and what was measured, written whole or not at all. A walk
that finds such files takes the steps over and computes only the forward runs between them, which
stop at the same places: nothing is gathered, ranked or fitted twice, and what comes after is the
same to the last bit on as many cores.

Files are safetensors with JSON in their metadata and a checksum over both. The first one that is
damaged ends what can be taken over; those after it are removed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from subprune.errors import DataError
from subprune.files import write_atomic
from subprune.program.ranks import ALONE, Ranks

__all__ = ["Finished", "Journal", "Log"]

Kind = Literal["group", "layer"]
Tensors = dict[str, Tensor]

_BUDGETS = "budgets.json"


@dataclass(frozen=True)
class Finished:
    """One finished step: the model and its versions after it, and what was measured."""

    models: list[Tensors]
    facts: dict[str, Any]


class Journal:
    """The files of one call; without a folder nothing is kept and nothing is found.

    ranks: those who share the call; the first of them writes the files, and all read them.
    """

    def __init__(self, folder: Path | None = None, ranks: Ranks = ALONE) -> None:
        self.folder, self.ranks = folder, ranks
        self.writes = ranks.rank == 0
        self.remarks: list[str] = []

    def budgets(self, look: Callable[[], dict[str, int]]) -> dict[str, int]:
        """The goal divided among the groups, as it was found before; of all ranks as the first
        found it.
        """
        path = None if self.folder is None else self.folder / _BUDGETS
        known = self.ranks.first(lambda: self._known_budgets(path))
        if known is not None:
            return known
        counts = look()
        counts = self.ranks.first(lambda: counts)
        if path is not None:
            self._write(path, json.dumps(counts).encode())
        return counts

    def _known_budgets(self, path: Path | None) -> dict[str, int] | None:
        if path is None or not path.is_file():
            return None
        try:
            known = json.loads(path.read_text())
            return {str(name): int(k) for name, k in known.items()}
        except (OSError, ValueError, TypeError, AttributeError) as error:
            self.remarks.append(f"the checkpoint's budgets are damaged ({error}): computed again")
            return None

    def log(self, *key: Any) -> Log:
        """The steps of one walk; key: what it differs in from other walks of the same call."""
        name = hashlib.sha256(repr(key).encode()).hexdigest()[:12]
        log = Log(self.folder, name, self._write)
        log.shortened(min(self.ranks.share(log.found)))
        if log.damage:
            self.remarks.append(log.damage)
            log.drop_rest(self.writes)
        if log.found:
            self.remarks.append(f"{log.found} finished steps were taken over from a checkpoint")
        return log

    def _write(self, path: Path, content: bytes) -> None:
        """Where there is no room, the work goes on and the rest is not kept."""
        if not self.writes:
            return
        try:
            write_atomic(path, content)
        except DataError as error:
            self.writes = False
            self.remarks.append(f"the checkpoint ends before the work: {error.message}")


class Log:
    """The steps of one walk, taken over or noted one after another."""

    def __init__(
        self,
        folder: Path | None = None,
        name: str = "",
        write: Callable[[Path, bytes], None] = lambda path, content: None,
    ) -> None:
        self._folder, self._name, self._write = folder, name, write
        self._next = 0
        self.damage = ""
        self._heads = [] if folder is None else self._read_heads()

    @property
    def found(self) -> int:
        """How many steps can be taken over."""
        return len(self._heads)

    def drop_rest(self, writes: bool) -> None:
        """Remove the files after those that can be taken over."""
        number = len(self._heads)
        while writes and self._path(number).is_file():
            self._path(number).unlink()
            number += 1

    def shortened(self, steps: int) -> None:
        """Take over no more than these steps, as many as all ranks of a job have found."""
        self._heads = self._heads[:steps]

    def has(self, kind: Kind, name: str) -> bool:
        """Whether a step is still to be taken over."""
        return (kind, name) in self._heads[self._next :]

    def take(self, kind: Kind, name: str, models: Sequence[Tensors]) -> Finished | None:
        """The next step, if it is this one; models: those before it, of which others are made."""
        if self._next >= len(self._heads):
            return None
        if self._heads[self._next] != (kind, name):  # of another order of layers: not ours
            self._heads = self._heads[: self._next]
            return None
        head, tensors = _read(self._path(self._next))
        self._next += 1
        device = next(iter(models[0].values())).device
        laid = {i: _laid_out(x, head["strides"][i]).to(device) for i, x in tensors.items()}
        new = [
            {**old, **{n: laid[i] for n, i in changed.items()}}
            for old, changed in zip(models, head["models"], strict=True)
        ]
        return Finished(new, _as_tuples(head["facts"]))

    def note(
        self,
        kind: Kind,
        name: str,
        before: Sequence[Mapping[str, Tensor]],
        after: Sequence[Mapping[str, Tensor]],
        facts: Mapping[str, Any],
    ) -> None:
        """Keep a step that was made: the tensors that it replaced, and what was measured."""
        number, self._next = self._next, self._next + 1
        if self._folder is None:
            return
        tensors: dict[int, tuple[str, Tensor]] = {}  # by identity: versions share some
        models = []
        for old, new in zip(before, after, strict=True):
            changed = [n for n, x in new.items() if x is not old[n]]
            for n in changed:
                tensors.setdefault(id(new[n]), (str(len(tensors)), new[n]))
            models.append({n: tensors[id(new[n])][0] for n in changed})
        state = {key: x.detach().cpu().contiguous() for key, x in tensors.values()}
        strides = {key: _strides(x) for key, x in tensors.values()}
        head = {"kind": kind, "name": name, "models": models, "strides": strides, "facts": facts}
        text = json.dumps(head)
        metadata = {"step": text, "sha256": _digest(text, state)}
        self._write(self._path(number), save(state, metadata))

    def _path(self, number: int) -> Path:
        assert self._folder is not None
        return self._folder / f"{self._name}-{number:05d}.safetensors"

    def _read_heads(self) -> list[tuple[str, str]]:
        """Kind and name of every step, up to the first that is missing or damaged."""
        heads: list[tuple[str, str]] = []
        while self._path(len(heads)).is_file():
            try:
                head, _ = _read(self._path(len(heads)))
            except DataError as error:
                self.damage = error.message
                break
            heads.append((head["kind"], head["name"]))
        return heads


def _read(path: Path) -> tuple[dict[str, Any], Tensors]:
    """What a step's file says, and its tensors; refused unless the checksum fits."""
    try:
        with safe_open(str(path), framework="pt") as file:
            metadata = file.metadata() or {}
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if _digest(metadata["step"], state) != metadata["sha256"]:
            raise ValueError("its checksum does not match")
        head: dict[str, Any] = json.loads(metadata["step"])
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise DataError(
            f"step {path.name} of the checkpoint is damaged ({error}): the work resumes from there"
        ) from error
    return head, state


def _digest(text: str, state: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(state):
        digest.update(f"{name}{tuple(state[name].shape)}{state[name].dtype}".encode())
        digest.update(state[name].reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _strides(x: Tensor) -> list[int]:
    """How a tensor lies in memory, where nothing lies between its numbers; else as a plain one.

    Another order of the same numbers is multiplied in another order.
    """
    return list(torch.empty_like(x, memory_format=torch.preserve_format).stride())


def _laid_out(x: Tensor, strides: Sequence[int]) -> Tensor:
    """The tensor with its numbers in that order."""
    if list(x.stride()) == list(strides):
        return x
    return torch.empty_strided(x.shape, list(strides), dtype=x.dtype).copy_(x)


def _as_tuples(x: Any) -> Any:
    """Lists as tuples, all the way down: what records hold."""
    if isinstance(x, list):
        return tuple(_as_tuples(y) for y in x)
    if isinstance(x, dict):
        return {key: _as_tuples(y) for key, y in x.items()}
    return x
