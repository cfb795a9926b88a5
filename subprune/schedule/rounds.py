"""`prune_in_rounds`: prune a little, train, prune a little more; a folder keeps what is done."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from subprune.api import prune
from subprune.cutting.surgery import duplicate
from subprune.errors import DataError, OptionError
from subprune.files import write_atomic
from subprune.io.storage import fingerprint_of, load, save
from subprune.keywords import must_be, takes_one
from subprune.measure.tables import text_table
from subprune.messages import Message, listed
from subprune.options.options import Options
from subprune.plan import history_of
from subprune.ready import Calibrated

__all__ = ["Round", "Rounds", "prune_in_rounds"]

STEPWISE = ("compression", "speedup", "params", "flops")
"""Goals that can be reached step by step: ratios, and shares of what the model has."""

_STATE = "rounds.json"
_FORMAT = "subprune-rounds-1"
_MOST_ROUNDS = 32


@dataclass(frozen=True)
class Round:
    """One round: what was asked for, and what became of the model."""

    goal: dict[str, float]  # ratios to the model that the round began with
    parameters: tuple[int, int]
    flops: tuple[int, int]  # per input
    seconds: float  # of the pruning
    trained: bool = False


@dataclass(frozen=True)
class Rounds:
    """What `prune_in_rounds` returns: the model after the last round, and every round."""

    model: nn.Module
    rounds: tuple[Round, ...]

    @property
    def parameters(self) -> tuple[int, int]:
        """Of the model given, and of the last one."""
        return self.rounds[0].parameters[0], self.rounds[-1].parameters[1]

    @property
    def flops(self) -> tuple[int, int]:
        """Per input, of the model given, and of the last one."""
        return self.rounds[0].flops[0], self.rounds[-1].flops[1]

    def __str__(self) -> str:
        header = ("round", "parameters", "FLOPs per input", "seconds")
        rows = [
            (str(i), *(f"{a:,} → {b:,}" for a, b in (r.parameters, r.flops)), f"{r.seconds:.1f}")
            for i, r in enumerate(self.rounds, 1)
        ]
        (before, after), count = self.parameters, len(rows)
        title = f"{before:,} → {after:,} parameters ({before / max(1, after):.2f}×) in {count} "
        title += "round" if count == 1 else "rounds"
        return text_table(header, rows, right=header[3:], title=title)


def prune_in_rounds(
    model: nn.Module,
    data: Any,
    finetune: Callable[[nn.Module], Any],
    *,
    rounds: int = 3,
    folder: str | Path | None = None,
    **options: Any,
) -> Rounds:
    """Prune in several rounds, with training of your own after each; the model given is not
    changed.

    Every round removes the same share of what is still to go, so that all of them together meet the
    goal. With a folder, every step is kept there as soon as it is done, and the same call resumes
    where it stopped: files are safetensors and JSON, nothing is unpickled.

    Args:
        model: as for `prune`.
        data: as for `prune`; it must give the same inputs again in every round, so a generator
            will not do.
        finetune: function that trains the model it is given, in place; if it returns a model, it must
            be that one.
        rounds: how many times the model is pruned and trained.
        folder: where the state is kept; None keeps nothing.
        options: those of `prune`. The goal is a ratio (`compression`, `speedup`), a share
            (``params="25%"``, ``flops="40%"``), or several of these.

    Returns:
        The model after the last training, and what every round did.
    """
    chosen = Options(**options)
    asked = _asked(chosen)
    if not isinstance(rounds, int) or isinstance(rounds, bool) or not 1 <= rounds <= _MOST_ROUNDS:
        allowed = f"a whole number from 1 to {_MOST_ROUNDS}"
        raise OptionError(must_be("rounds", allowed, rounds))
    if not callable(finetune) or not takes_one(finetune):
        allowed = "a function that takes one argument, the model, and trains it"
        raise OptionError(must_be("finetune", allowed, finetune))
    if isinstance(data, Iterator):
        raise OptionError(
            "the data is a generator, which is used up after one round; give a list, a data set or "
            "a loader"
        )
    if isinstance(data, Calibrated):
        raise OptionError(
            "what calibrate made is for one model, and every round prunes another: give the data "
            "itself"
        )
    call = {"goal": asked, "rounds": rounds, "options": _settings(chosen)}
    state = _State.begin(None if folder is None else Path(folder), model, call)
    current = state.model(model)
    for number in range(len(state.done), rounds + 1):
        if number and not state.done[-1].trained:
            current = _trained(current, finetune)
            state = state.trained(current)
        if number < rounds:
            goal = _next(asked, state.done, rounds - number)
            result = prune(current, data, **{**options, **goal})
            current = result.model
            report = result.report
            state = state.pruned(
                result, Round(goal, report.parameters, report.flops, report.seconds)
            )
    return Rounds(current, state.done)


def _trained(model: nn.Module, finetune: Callable[[nn.Module], Any]) -> nn.Module:
    """The model after training; a copy is trained, so that a break leaves what was kept."""
    new = duplicate(model)
    shapes = {name: x.shape for name, x in new.state_dict().items()}
    given = finetune(new)
    if isinstance(given, nn.Module) and given is not new:
        raise DataError(
            "finetune returned another model, but the one it was given is used; train that one in "
            "place, or copy the weights into it with model.load_state_dict"
        )
    if {name: x.shape for name, x in new.state_dict().items()} != shapes:
        raise DataError(
            "finetune changed the shapes or names of the model's tensors; it may only change their "
            "values"
        )
    return new.train(model.training)


# ---- goals ---------------------------------------------------------------------------------------


def _asked(options: Options) -> dict[str, float]:
    """The goals as ratios, before / after."""
    given = {name: getattr(options.goal, name) for name in STEPWISE}
    asked = {name: _ratio(name, value) for name, value in given.items() if value is not None}
    others = [n for n in ("latency", "keep", "budgets") if getattr(options, n) is not None]
    if others or not asked:
        words = (
            "rounds go step by step to a ratio or a share: give {ratios}; {others} cannot be divided "
            "into steps"
        )
        names = listed(others or ("latency", "keep", "budgets"), " and ")
        raise OptionError(Message(words, ratios=listed(STEPWISE, " or "), others=names))
    return asked


def _ratio(name: str, value: Any) -> float:
    if name in ("compression", "speedup"):
        return float(value)
    if not isinstance(value, str):
        words = (
            f"{{{name}=}} must be a share such as 25% here, since every round takes a part of it"
        )
        raise OptionError(Message(words, **{name: value}))
    return 100 / float(value.strip().removesuffix("%"))


def _next(asked: Mapping[str, float], done: tuple[Round, ...], remaining: int) -> dict[str, Any]:
    """The goals of the next round: an equal step, in ratios, of what is still to go."""
    goal: dict[str, Any] = {}
    for name, ratio in asked.items():
        for r in done:
            before, after = r.parameters if name in ("compression", "params") else r.flops
            ratio /= before / after
        # `ratio` is what is still to go: with equal steps, the root of it for every round.
        step = max(1.0, ratio) ** (1 / remaining)
        goal[name] = step if name in ("compression", "speedup") else f"{100 / step:.9f}%"
    return goal


def _settings(options: Options) -> dict[str, Any]:
    """The other options, as the state keeps them."""
    plain = options.to_dict()
    return json.loads(
        json.dumps({k: v for k, v in plain.items() if k not in STEPWISE}, default=str)
    )


# ---- the state on disk ---------------------------------------------------------------------------


@dataclass(frozen=True)
class _State:
    """What is done, and the folder that remembers it; without a folder nothing is written."""

    folder: Path | None
    call: dict[str, Any]  # what was asked for, and of which model
    done: tuple[Round, ...] = ()

    @classmethod
    def begin(cls, folder: Path | None, model: nn.Module, call: dict[str, Any]) -> _State:
        """A new state, or the one that the folder holds, if it is that of the same call."""
        if folder is None:
            return cls(None, call)
        if folder.exists() and not folder.is_dir():
            words = "{folder:name} must be a folder, and {got!r} is a file; give another place"
            raise OptionError(Message(words, got=str(folder)))
        call = {**call, "model": fingerprint_of(model)}
        path = folder / _STATE
        if not path.is_file():
            return cls(folder, call)
        known = _read(path)
        differing = [name for name in call if known["call"].get(name) != call[name]]
        if differing:
            raise DataError(
                f"{str(folder)!r} holds the state of another call, with another "
                f"{' and '.join(differing)}; repeat that call to go on with it, or give another "
                "folder"
            )
        return cls(folder, call, tuple(_round(r) for r in known["done"]))

    def model(self, original: nn.Module) -> nn.Module:
        """The model as it was last kept."""
        if not self.done or self.folder is None:
            return original
        return load(original, self.folder / self._file).train(original.training)

    @property
    def _file(self) -> str:
        """The file that belongs to the last step."""
        return f"round-{len(self.done)}{'-trained' if self.done[-1].trained else ''}.safetensors"

    def pruned(self, result: Any, made: Round) -> _State:
        return replace(self, done=(*self.done, made))._kept(result)

    def trained(self, model: nn.Module) -> _State:
        last = replace(self.done[-1], trained=True)
        return replace(self, done=(*self.done[:-1], last))._kept(model)

    def _kept(self, result: Any) -> _State:
        """Write the model, then the state that names it: a break between leaves the old state."""
        if self.folder is not None:
            model = result if isinstance(result, nn.Module) else result.model
            assert history_of(model)
            save(result, self.folder / self._file)
            content = {"format": _FORMAT, "call": self.call, "done": [asdict(r) for r in self.done]}
            write_atomic(self.folder / _STATE, json.dumps(content, indent=1).encode())
        return self


def _read(path: Path) -> dict[str, Any]:
    """A state, checked for everything that is used of it."""
    try:
        content = json.loads(path.read_bytes())
        if content["format"] != _FORMAT or not isinstance(content["call"], dict):
            raise ValueError(f"format {content['format']!r:.40}, expected {_FORMAT!r}")
        for r in content["done"]:
            _round(r)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(
            f"{path} is damaged or not a state of rounds ({type(error).__name__}: {error}); give "
            "another folder"
        ) from error
    known: dict[str, Any] = content
    return known


def _round(record: Mapping[str, Any]) -> Round:
    pairs = [tuple(int(n) for n in record[name]) for name in ("parameters", "flops")]
    if any(len(pair) != 2 or min(pair) < 1 for pair in pairs):
        raise ValueError("parameters and flops are pairs of positive numbers")
    parameters, flops = ((pair[0], pair[1]) for pair in pairs)
    return Round(
        dict(record["goal"]), parameters, flops, float(record["seconds"]), bool(record["trained"])
    )
