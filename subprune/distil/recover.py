"""`recover`: what pruning lost, won back by training on the same inputs, without labels."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from subprune.data.batch import some_samples
from subprune.data.batches import take
from subprune.data.division import folded
from subprune.data.tokens import counted_by_shape
from subprune.distil.augment import Sampler
from subprune.distil.training import Course, Match, train
from subprune.errors import DataError, OptionError
from subprune.keywords import must_be
from subprune.measure.answers import main_output, read
from subprune.measure.language import token_count
from subprune.program.program import flat_tensors
from subprune.progress import Step, progress_bar
from subprune.reading.reader import from_path
from subprune.report.recovery import Recovery

if TYPE_CHECKING:
    from subprune.data.batch import Batch
    from subprune.result import Result

__all__ = ["recover"]

_HELD_OUT = 8  # one input of this many is never trained on
_JUDGED = 2048  # tokens that are held out, at most: they are looked at again and again
_INPUTS, _TOKENS = 64, 1024  # of a step, at most
_RATES = {True: 1e-3, False: 1e-4}  # whether what is trained on is ever new
_CLOCKS = {"wall": time.perf_counter, "processor": time.process_time}
_PRODUCTS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_MATCHES: tuple[Match, ...] = ("scores", "probabilities")


def recover(
    result: Result,
    data: Any,
    *,
    dense: nn.Module | None = None,
    minutes: float = 10.0,
    clock: Literal["wall", "processor"] = "wall",
    steps: int | None = None,
    rate: float | None = None,
    batch: int | None = None,
    augment: bool = True,
    products: Literal["float32", "bfloat16"] = "float32",
    match: Match | None = None,
    n_samples: int | str | None = None,
    forward: Callable[[Any], Any] | None = None,
    seed: int = 0,
    progress: bool | Callable[[Step], None] | None = None,
) -> Result:
    """Train the smaller model to answer as the dense one does. Neither model given is changed.

    No labels: the dense model says what should come out, also for crops, mirror images, mixtures
    and collages of the inputs. One input of eight is held out, of sequences no more than have 2,048
    tokens; the state on the way that does best on those is what stays, even if that is the first.

    Args:
        result: what `prune` gave back.
        data: inputs as for `prune`; the same, or more.
        dense: the model that was pruned; by default the one that `prune` was given.
        minutes: how long it may take.
        clock: "processor" counts the time of this process alone, all its threads added up: where
            other work shares the machine, the same minutes then buy the same training.
        steps: how many steps at most; by default as many as the minutes allow.
        rate: the highest learning rate. By default 1e-3 for images that are augmented, of
            which no two steps see the same, and else 1e-4.
        batch: inputs of a step; by default 64, of long sequences as many as have 1,024 tokens.
        augment: whether images are cropped, mirrored and mixed.
        products: "bfloat16" multiplies in that type while training, faster where the processor
            can (AVX-512 BF16, AMX); weights and figures stay as they are.
        match: what of class answers is made the same, "scores" or "probabilities". By default
            scores where each input has one answer, else (words, pixels) probabilities.
        n_samples: how many inputs, or tokens, are used, as for `prune`; by default all.
        forward: as for `prune`.
        seed: seed for everything random.
        progress: as for `prune`.

    Returns:
        A `Result` with the trained model; its `recovery` says what it brought.
    """
    _check_numbers(minutes=minutes, steps=steps, rate=rate, batch=batch)
    _check_choices(products=products, clock=clock, match=match)
    teacher = _teacher(result, dense)
    data = from_path(data, teacher, n_samples, seed)
    inputs = take(data, teacher, n_samples, forward=forward, seed=seed)
    seen, unseen = _divided(inputs.batches)
    sampler, judged = Sampler.of(_arguments(seen), augment, seed), _joined(unseen, seed)
    dim, usual = _kind(teacher, judged, unseen[0])
    course = Course(
        minutes=minutes,
        rate=_RATES[sampler.augment] if rate is None else rate,
        batch=_batch_size(seen[0]) if batch is None else batch,
        steps=steps,
        products=_PRODUCTS[products],
        clock=_CLOCKS[clock],
        match=usual if match is None else match,
        turned=sampler.augment,
    )
    looks = {"training": course.looks + 1}
    with progress_bar(looks, progress) as tick, _at_rest(teacher, result.model):
        tick.enter("training")
        training = train(teacher, result.model, sampler, judged, course, dim, tick)
        recovery = Recovery(
            match=None if dim is None else course.match,
            loss=(training.losses[0], training.losses[training.best]),
            agreement=_agreements(teacher, (result.model, training.model), judged, dim),
            inputs=sampler.count,
            held_out=sum(b.size for b in unseen),
            steps=training.steps,
            seconds=training.seconds,
        )
    return _recovered(result, training.model, recovery)


def _recovered(result: Result, model: nn.Module, recovery: Recovery) -> Result:
    """The result with the trained model, and a note that says what the training brought."""
    model.train(result.model.training)
    report = replace(result.report, notes=(*result.report.notes, str(recovery)))
    return replace(result, model=model, report=report, recovery=recovery)


def _batch_size(batch: Batch) -> int:
    """Inputs of a step: sequences count with their tokens."""
    tokens = token_count(batch) // max(1, batch.size)
    return max(1, min(_INPUTS, _TOKENS // max(1, tokens)))


def _teacher(result: Result, dense: nn.Module | None) -> nn.Module:
    """The model that says what should come out."""
    if not hasattr(result, "dense"):
        raise OptionError(
            "recover takes what subprune.prune gave back, result, not result.model; got an object "
            f"of type {type(result).__name__}"
        )
    teacher = result.dense if dense is None else dense
    if teacher is None:
        raise OptionError(
            "this result does not know the dense model it was made from: give it as dense=model"
        )
    return teacher


def _kind(teacher: nn.Module, arguments: Any, batch: Batch) -> tuple[int | None, Match]:
    """The dimension of the classes, None for numbers; and what of the answers is matched: of many
    answers to one input, their probabilities.
    """
    with _at_rest(teacher):
        output = _answer(teacher, arguments)
    dim = read(output, replace(batch, labels=None)).dim
    return dim, _MATCHES[output.ndim > 2]


def _divided(batches: Sequence[Batch]) -> tuple[list[Batch], list[Batch]]:
    """Inputs to train on, and those that are held out."""
    parts, numbers = folded(batches, _HELD_OUT)
    seen = [b for b, fold in zip(parts, numbers, strict=True) if fold]
    unseen, rest = _first([b for b, fold in zip(parts, numbers, strict=True) if not fold])
    seen += rest
    if not seen or not unseen:
        raise DataError(
            f"recover needs some inputs to train on and some to hold out; got {len(parts)} in all"
        )
    return seen, unseen


def _first(batches: Sequence[Batch]) -> tuple[list[Batch], list[Batch]]:
    """The inputs to judge by: all, or as many sequences as are enough; and those after them."""
    tokens = token_count(batches[0]) // batches[0].size if batches else 0
    if not tokens:
        return list(batches), []
    judged: list[Batch] = []
    rest: list[Batch] = []
    left = max(1, _JUDGED // tokens)
    for batch in batches:
        most = min(batch.size, left)
        left -= most
        for some, of in ((slice(most), judged), (slice(most, None), rest)):
            of += [some_samples(batch, some)] if range(batch.size)[some] else []
    return judged, rest


def _check_choices(**given: Any) -> None:
    choices: dict[str, Collection[Any]]
    choices = {"products": _PRODUCTS, "clock": _CLOCKS, "match": (*_MATCHES, None)}
    for name, allowed in choices.items():
        if given[name] not in list(allowed):  # which may be anything, a list included
            raise OptionError(must_be(name, f"one of {', '.join(map(str, allowed))}", given[name]))


def _check_numbers(
    *, minutes: float, steps: int | None, rate: float | None, batch: int | None
) -> None:
    for name, value in (("minutes", minutes), ("rate", 1.0 if rate is None else rate)):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not 0 < value < math.inf:
            raise OptionError(must_be(name, "a positive number", value))
    for name, count in (("steps", steps), ("batch", batch)):
        if count is not None and (
            not isinstance(count, int) or isinstance(count, bool) or count < 1
        ):
            raise OptionError(must_be(name, "a positive whole number", count))


@contextlib.contextmanager
def _at_rest(*models: nn.Module) -> Iterator[None]:
    """The models in eval mode; every module is as it was afterwards."""
    modes = [(module, module.training) for model in models for module in model.modules()]
    for model in models:
        model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def _arguments(batches: Sequence[Batch]) -> list[Any]:
    """The arguments of all batches, which must have the same shape but for their number."""
    trees = [b.inputs for b in batches]
    shapes = {
        tuple(tuple(x.shape[1:]) for x in tree_flatten(tree)[0] if isinstance(x, Tensor))
        for tree in trees
    }
    if len(shapes) > 1:
        raise DataError(
            "recover needs inputs of one shape, to join them to batches; got "
            f"{len(shapes)} different ones: pad or crop them"
        )
    return trees


def _joined(batches: Sequence[Batch], seed: int) -> Any:
    """All batches as one."""
    sampler = Sampler.of(_arguments(batches), False, seed)
    return sampler.draw(torch.arange(sampler.count))


@torch.no_grad()
def _answer(model: nn.Module, arguments: Any) -> Tensor:
    args, kwargs = arguments
    return main_output(flat_tensors(model(*args, **kwargs)))


def _agreements(
    dense: nn.Module, models: Sequence[nn.Module], arguments: Any, dim: int | None
) -> tuple[float, float] | None:
    if dim is None:
        return None
    output = _answer(dense, arguments)
    wanted, where = output.argmax(dim), counted_by_shape(arguments, output.shape)
    counts = wanted == wanted if where is None else where.amax(dim).expand(wanted.shape)
    before, after = (
        float((_answer(model, arguments).argmax(dim) == wanted)[counts].double().mean())
        for model in models
    )
    return before, after
