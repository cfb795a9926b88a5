"""The training itself: answers and features of the dense model on ever new views of the inputs.

BatchNorm stays in eval mode: the pruned model was fitted with its stored statistics. The rate is
small, since the start is good, and falls to zero. Held-out inputs, which are never trained on, say
which of the states on the way stays: the first one too, so the answers on them never get worse.

What is matched of a class answer is its scores, less their mean, where an input has one answer: a
network is sure of the inputs that it was trained on, so its probabilities there say little more
than the class, and matching them makes the smaller one unsure rather than right. Where an input
has many answers (words, pixels), most of whose scores mean nothing, it is the probabilities.

Images are laid out with the channels of a pixel next to each other where both models can work
with that: convolutions on CPUs are faster then. If bfloat16 was asked for, only products are made
in it.
"""

from __future__ import annotations

import contextlib
import copy
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from subprune.data.tokens import counted_by_shape
from subprune.data.views import is_image
from subprune.distil.optimiser import Preconditioned
from subprune.measure.answers import main_output
from subprune.program.layout import over_rows
from subprune.program.program import flat_tensors

if TYPE_CHECKING:
    from subprune.distil.augment import Sampler
    from subprune.program.program import Inputs

__all__ = ["Course", "Match", "Training", "answer_loss", "features", "train"]

Match = Literal["scores", "probabilities"]
"""What of class answers is made the same."""

_HALF = (torch.float16, torch.bfloat16)
_WARMING = 0.05  # share of the course in which the rate rises
# Weight of an error of the answers, relative to one of the features; scores are relative too.
_WEIGHT: dict[Match, float] = {"scores": 10.0, "probabilities": 1.0}


@dataclass(frozen=True, kw_only=True)
class Course:
    """How the training goes."""

    minutes: float  # at most
    rate: float  # the highest learning rate
    batch: int
    steps: int | None = None  # at most; None: as many as the minutes allow
    products: torch.dtype = torch.float32  # of the training; looks are in the model's own
    looks: int = 20  # times that held-out inputs are looked at
    clock: Callable[[], float] = time.perf_counter  # seconds, which the minutes are counted by
    match: Match = "probabilities"  # where answers are classes
    # Whether gradients are turned to their usual directions. That costs little where a step meets
    # each weight at many positions of images, and as much as the step itself at 1,024 words.
    turned: bool = False


@dataclass
class Training:
    """The trained model, and how it went."""

    model: nn.Module
    losses: list[float] = field(default_factory=list)  # on held-out inputs, the first before
    steps: int = 0
    best: int = 0  # the look whose model stayed; 0: the one given
    seconds: float = 0.0


def train(
    dense: nn.Module,
    small: nn.Module,
    sampler: Sampler,
    held_out: Inputs,
    course: Course,
    dim: int | None,
    tick: Callable[[str], None] = lambda text: None,
) -> Training:
    """Train a copy of `small`; both models are in eval mode. dim: of the classes; None: numbers."""
    started, begun = time.perf_counter(), course.clock()
    names = features(dense, small, held_out)
    # Small steps vanish in half precision: such a model is trained in float32, and converted back.
    model, half = copy.deepcopy(small), any(p.dtype in _HALF for p in small.parameters())
    model = model.float() if half else model

    def outputs(arguments: Inputs, names: Sequence[str] = ()) -> tuple[Tensor, list[Tensor]]:
        return _outputs(model, names, tree_map(_widened, arguments) if half else arguments)

    # Only floating parameters are trained; buffers, such as BatchNorm's moments, stay.
    trained = [p.requires_grad_() for p in model.parameters() if p.is_floating_point()]
    rule = Preconditioned if course.turned else torch.optim.Adam
    optimiser: torch.optim.Optimizer = rule(trained, lr=course.rate)
    rearranged = _pixel_by_pixel if _may_rearrange((dense, model), held_out) else _as_it_is
    with torch.no_grad():
        wanted = _outputs(dense, (), held_out)[0]

    def look() -> float:
        with torch.no_grad():
            given = outputs(held_out)[0]
            where = counted_by_shape(held_out, wanted.shape)
            return float(answer_loss(wanted, given, dim, where, course.match))

    training = Training(model, [look()])
    best = _state(model)

    def judge() -> None:
        training.losses.append(look())
        tick(f"step {training.steps}, held-out loss {training.losses[-1]:.4f}")
        if training.losses[-1] < training.losses[training.best]:
            training.best = len(training.losses) - 1
            best.update(_state(model))

    def done() -> float:
        """The share of the course that is behind."""
        by_time = (course.clock() - begun) / (60 * course.minutes)
        by_steps = 0.0 if course.steps is None else training.steps / max(1, course.steps)
        return max(by_time, by_steps)

    for numbers in _endless(sampler, course.batch):
        progress = done()  # from 0 to 1: rate and looks follow it, so that time alone may end it
        if progress >= 1:
            break
        if progress * course.looks >= len(training.losses):
            judge()
        for group in optimiser.param_groups:
            group["lr"] = course.rate * _share(progress)
        arguments = tree_map(rearranged, sampler.draw(numbers))
        with _multiplying(trained[0].device, course.products):
            with torch.no_grad():
                answers, aims = _outputs(dense, names, arguments)
            given, values = outputs(arguments, names)
        where = [counted_by_shape(arguments, x.shape) for x in (answers, *aims)]
        loss = answer_loss(answers, given, dim, where[0], course.match)
        weight = 1.0 if dim is None else _WEIGHT[course.match]
        loss = weight * loss + _feature_loss(aims, values, where[1:])
        if not loss.isfinite():  # nothing can come of it any more
            break
        optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call, unused-ignore]
        optimiser.step()
        training.steps += 1
    judge()
    model.load_state_dict(best)
    _as_before(model, small)
    training.seconds = time.perf_counter() - started
    return training


def _multiplying(device: torch.device, products: torch.dtype) -> torch.autocast:
    """Where products are made in another type than float32."""
    return torch.autocast(device.type, products, enabled=products != torch.float32)


def _as_it_is(x: Any) -> Any:
    return x


def _pixel_by_pixel(x: Any) -> Any:
    """Images [N, channels, height, width] with the channels of each pixel next to each other."""
    return x.contiguous(memory_format=torch.channels_last) if is_image(x) else x


def _may_rearrange(models: Sequence[nn.Module], arguments: Inputs) -> bool:
    """Whether the models give the same for images that lie in memory in another way.

    Some cannot: `x.view(len(x), -1)` asks for the usual one.
    """
    if not any(is_image(x) and x.device.type == "cpu" for x in tree_leaves(arguments)):
        return False
    some = tree_map(lambda x: x[:2] if isinstance(x, Tensor) and x.ndim else x, arguments)
    other = tree_map(_pixel_by_pixel, some)
    try:
        with torch.no_grad():
            pairs = [(_outputs(m, (), some)[0], _outputs(m, (), other)[0]) for m in models]
    except RuntimeError:
        return False
    return all(torch.allclose(a, b, rtol=1e-2, atol=1e-3 * float(a.abs().max())) for a, b in pairs)


def _widened(x: Any) -> Any:
    """In float32, where it is in half precision."""
    return x.float() if isinstance(x, Tensor) and x.dtype in _HALF else x


def _state(model: nn.Module) -> dict[str, Tensor]:
    return {name: x.detach().clone() for name, x in model.state_dict().items()}


def _as_before(model: nn.Module, given: nn.Module) -> None:
    """No gradients left, types as they were, and parameters that want gradients are those that did."""
    for mine, theirs in zip(model.parameters(), given.parameters(), strict=True):
        mine.grad = None
        mine.data = mine.data.to(theirs.dtype)
        mine.requires_grad_(theirs.requires_grad)
    for buffer, old in zip(model.buffers(), given.buffers(), strict=True):
        buffer.data = buffer.data.to(old.dtype)


def _endless(sampler: Sampler, size: int) -> Iterator[Tensor]:
    while True:
        yield from sampler.batches(size)


def _share(progress: float) -> float:
    """Share of the highest rate: up quickly, then down along a cosine."""
    return min(1.0, progress / _WARMING + 0.02) * math.cos(progress * math.pi / 2)


# ---- what is compared ------------------------------------------------------------------------


def answer_loss(
    wanted: Tensor,
    given: Tensor,
    dim: int | None,
    where: Tensor | None = None,
    match: Match = "probabilities",
) -> Tensor:
    """How far class scores are from those wanted; of numbers (dim None), their relative error.

    match: "probabilities" is the KL divergence per answer; "scores", the relative error of the
    scores less their mean over the classes, which softmax does not see. where: the positions that
    count, other dimensions of length 1; None: all.
    """
    if dim is None:
        return _relative(_counting(wanted, where), _counting(given, where))
    scores = [x.movedim(dim, -1).flatten(0, -2).float() for x in (wanted, given)]
    if where is not None:
        valid = over_rows(where, wanted.shape, dim).reshape(-1)
        scores = [x[valid] for x in scores]
    if match == "scores":
        return _relative(*(x - x.mean(-1, keepdim=True) for x in scores))
    wanted, given = (F.log_softmax(x, -1) for x in scores)
    return F.kl_div(given, wanted, reduction="batchmean", log_target=True)


def _relative(wanted: Tensor, given: Tensor) -> Tensor:
    """‖wanted − given‖² / ‖wanted‖²."""
    return (wanted - given).square().sum() / wanted.square().sum().clamp_min(1e-12)


def _feature_loss(
    wanted: Sequence[Tensor], given: Sequence[Tensor], where: Sequence[Tensor | None]
) -> Tensor:
    """Relative squared errors at the positions that count, on average."""
    parts = []
    for a, b, valid in zip(wanted, given, where, strict=True):
        a, b = (_counting(_widened(x), valid) for x in (a, b))
        parts.append((a - b).square().mean() / a.square().mean().clamp_min(1e-12))
    return torch.stack(parts).mean() if parts else torch.zeros(())


def _counting(x: Tensor, where: Tensor | None) -> Tensor:
    """The entries at positions that count."""
    return x if where is None else x[where.expand(x.shape)]


def features(dense: nn.Module, small: nn.Module, arguments: Inputs) -> list[str]:
    """Modules that give a tensor of the same shape in both models: the outermost ones, but not
    containers that hand on what their last child gave.
    """
    shapes: list[dict[str, tuple[int, ...]]] = []
    for model in (dense, small):
        seen: dict[str, tuple[int, ...]] = {}

        def see(name: str, x: Tensor, seen: dict[str, tuple[int, ...]] = seen) -> None:
            seen[name] = tuple(x.shape)

        names = [n for n, m in model.named_modules() if n and not isinstance(m, nn.Sequential)]
        with torch.no_grad(), _watched(model, names, see):
            _call(model, arguments)
        shapes.append(seen)
    same = [n for n, shape in shapes[0].items() if shapes[1].get(n) == shape and len(shape) > 1]
    return [n for n in same if not any(n.startswith(f"{m}.") for m in same)]


@contextlib.contextmanager
def _watched(
    model: nn.Module, names: Sequence[str], see: Callable[[str, Tensor], None]
) -> Iterator[None]:
    """`see` gets the name of every named module and the tensor that it gives."""
    modules, hooks = dict(model.named_modules()), []
    for name in names:

        def hook(module: nn.Module, args: Any, result: Any, name: str = name) -> None:
            if isinstance(result, Tensor) and result.is_floating_point():
                see(name, result)

        hooks.append(modules[name].register_forward_hook(hook))
    try:
        yield
    finally:
        for one in hooks:
            one.remove()


def _outputs(
    model: nn.Module, names: Sequence[str], arguments: Inputs
) -> tuple[Tensor, list[Tensor]]:
    """The output that is looked at, and what the named modules gave."""
    given: dict[str, Tensor] = {}
    with _watched(model, names, given.__setitem__):
        result = _call(model, arguments)
    return main_output(flat_tensors(result)), [given[n] for n in names]


def _call(model: nn.Module, arguments: Inputs) -> Any:
    args, kwargs = arguments
    return model(*args, **kwargs)
