"""`evaluate`: how good a model is, by a protocol that is printed with the figures."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from subprune.data.batch import Batch
from subprune.data.batches import take
from subprune.data.tokens import IGNORED
from subprune.errors import DataError, OptionError, StructureError
from subprune.keywords import must_be
from subprune.measure.answers import Reading, fitting
from subprune.measure.causality import QUANTISED, predicts_next
from subprune.measure.compare import Comparison, Tally
from subprune.measure.language import next_tokens, token_count
from subprune.measure.measurements import outputs
from subprune.program.borrow import given_back
from subprune.program.record import record_given
from subprune.progress import Step, progress_bar

if TYPE_CHECKING:
    from subprune.program.program import Program

__all__ = ["Evaluation", "Share", "evaluate", "is_text", "windows"]

_CONTEXT = 1024
_TOP = 5


@dataclass(frozen=True)
class Share:
    """A share of right answers, and its standard error."""

    value: float
    error: float

    @classmethod
    def of(cls, right: int, count: int) -> Share:
        value = right / count
        return cls(value, math.sqrt(value * (1 - value) / count))

    def __str__(self) -> str:
        return f"{100 * self.value:.2f}% ± {100 * self.error:.2f}"


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What was measured, and how."""

    model: str  # its class
    protocol: str  # in words
    inputs: int
    kind: str  # "input", "pixel", "token", "position": what one answer is about; "" for numbers
    perplexity: float | None = None
    tokens: int = 0  # predicted
    top1: Share | None = None
    top5: Share | None = None
    # The same of the dense model, and how the model's outputs compare with it, where it was given.
    dense_perplexity: float | None = None
    dense_top1: Share | None = None
    agreement: Share | None = None
    cosine: float | None = None
    output_change: float | None = None  # ‖model − dense‖² / ‖dense‖²
    seconds: float = 0.0  # that the model ran
    tokens_per_second: float | None = None  # whole sequences, without generating

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON; figures that are not finite are null."""
        content = asdict(self)
        for name, value in content.items():
            if isinstance(value, float) and not math.isfinite(value):
                content[name] = None
        return content

    def lines(self) -> list[tuple[str, str]]:
        """Names and figures, in words."""
        rows: list[tuple[str, str]] = []
        if self.perplexity is not None:
            rows.append(("perplexity", self._perplexity(self.perplexity)))
        what = "next token" if self.perplexity is not None else self.kind
        if self.top1 is not None:
            dense = f" (dense model: {self.dense_top1})" if self.dense_top1 else ""
            rows.append((f"top-1 per {what}", f"{self.top1}{dense}"))
        if self.top5 is not None:
            rows.append((f"top-5 per {what}", str(self.top5)))
        if self.agreement is not None:
            rows.append(("agreement with the dense model", f"{self.agreement} of {self.kind}s"))
        if self.cosine is not None:
            rows.append(("mean cosine with the dense model", f"{self.cosine:.4f}"))
        if self.output_change is not None:
            rows.append(("output change", f"{100 * self.output_change:.3g}%"))
        if self.tokens_per_second is not None:
            speed = f"{self.tokens_per_second:,.0f}, whole sequences"
            rows.append(("tokens per second", speed))
        return [*rows, ("protocol", self.protocol)]

    def _perplexity(self, value: float) -> str:
        if not self.dense_perplexity:
            return f"{value:.4g}"
        ratio = value / self.dense_perplexity
        return f"{value:.4g} (dense model: {self.dense_perplexity:.4g}; {ratio:.3f}×)"

    def __str__(self) -> str:
        return "\n".join(f"{name}: {text}" for name, text in self.lines())


@given_back
def evaluate(
    model: nn.Module,
    data: Any,
    *,
    dense: nn.Module | None = None,
    context: int | None = None,
    stride: int | None = None,
    tokens: int | None = None,
    n_samples: int | None = None,
    forward: Callable[[Any], Any] | None = None,
    progress: bool | Callable[[Step], None] | None = None,
) -> Evaluation:
    """Perplexity, accuracy, agreement or cosine, whichever the model's outputs are made for.

    A causal language model takes a text, one long row of token numbers, which is read in windows:
    each begins `stride` tokens after the one before, and predicts all its tokens but the first and
    those that an earlier window has predicted. Other data are inputs as for `prune`: with labels
    they give top-1 and top-5, with `dense` the agreement or, for vectors, the mean cosine.

    Args:
        model: any `torch.nn.Module`.
        data: token numbers of a text ``[tokens]``, or inputs as for `prune`, all of which are used.
        dense: another model, to compare with.
        context: tokens of a window; by default 1,024, or as many as the model takes.
        stride: tokens from one window to the next; by default `context`, so that none overlap.
        tokens: how much of the text is read, from its start; by default all.
        n_samples: how many inputs are used; by default all.
        forward: as for `prune`.
        progress: as for `prune`.

    Returns:
        An `Evaluation`, which prints as a few lines.
    """
    text = _text(data)
    if text is not None:
        size = _window(model, context)
        step = size if stride is None else stride
        batches = windows(_part(text, tokens), size, step)
        protocol = _words(batches, size, step)
    else:
        for name, value in (("context", context), ("stride", stride), ("tokens", tokens)):
            if value is not None:
                raise OptionError(
                    f"{name} is for texts, one row of token numbers; the data is something else: "
                    "omit it"
                )
        batches = take(data, model, n_samples, forward=forward).batches
        protocol = f"{sum(b.size for b in batches):,} inputs, as given"
    # What outputs mean is asked of the dense model, if there is one: it is the better witness.
    reference = model if dense is None else dense
    program = _recorded(reference, batches[0])
    slack = 0.0 if text is None else QUANTISED
    causal = predicts_next(reference, batches[0], program, slack)
    if text is not None and not causal:
        raise DataError(
            "the data is a text, one row of token numbers, and the model is not a causal language "
            "model; give batches of inputs"
        )
    tally, top, seconds = Tally(program, causal), _Top(causal), 0.0
    with progress_bar({"evaluating": len(batches)}, progress) as tick:
        for i, batch in enumerate(batches):
            tick(f"batch {i + 1} of {len(batches)}")
            started = time.perf_counter()
            (after,) = outputs(model, [batch])
            seconds += time.perf_counter() - started
            before = after if dense is None else next(outputs(dense, [batch]))
            tally.add(before, after, batch)
            top.add(after, batch, tally.reading)
    tokens_seen = sum(token_count(b) for b in batches)
    figures = _evaluation(tally.result(), top, dense is not None)
    speed = tokens_seen / seconds if tokens_seen and seconds else None
    return Evaluation(
        model=type(model).__name__,
        protocol=protocol,
        seconds=seconds,
        tokens_per_second=speed,
        **figures,
    )


def is_text(data: Any) -> bool:
    """Whether the data is one row of whole numbers."""
    return _text(data) is not None


def _text(data: Any) -> Tensor | None:
    whole = isinstance(data, np.ndarray) and np.issubdtype(data.dtype, np.integer)
    row = torch.as_tensor(data) if whole else data
    if not isinstance(row, Tensor) or row.ndim != 1 or row.dtype == torch.bool:
        return None
    return None if row.is_floating_point() or row.is_complex() else row.long()


def windows(text: Tensor, context: int, stride: int) -> list[Batch]:
    """A text [tokens] in windows; labels say which tokens each of them predicts."""
    if isinstance(stride, bool) or not isinstance(stride, int) or not 1 <= stride <= context:
        raise OptionError(must_be("stride", f"a whole number from 1 to {context}", stride))
    pieces: list[Batch] = []
    done = 0  # tokens that were predicted, or are the text's first
    for start in range(0, len(text), stride):
        row = text[start : start + context]
        if len(row) < 2:
            break
        labels = row.clone()  # what an earlier window has predicted is not counted again
        labels[: max(0, done - start)] = IGNORED
        pieces.append(Batch(((row[None],), {}), labels[None], 1))
        done = start + len(row)
        if done == len(text):
            break
    return pieces


def _window(model: nn.Module, context: int | None) -> int:
    """Tokens of a window."""
    most = getattr(getattr(model, "config", None), "max_position_embeddings", None)
    most = most if isinstance(most, int) and most > 1 else None
    if context is None:
        return min(_CONTEXT, most or _CONTEXT)
    if isinstance(context, bool) or not isinstance(context, int) or context < 2:
        raise OptionError(must_be("context", "a whole number from 2 on", context))
    if most is not None and context > most:
        raise OptionError(must_be("context", f"at most {most}, the model's own limit", context))
    return context


def _part(text: Tensor, tokens: int | None) -> Tensor:
    if tokens is not None and (isinstance(tokens, bool) or not isinstance(tokens, int)):
        raise OptionError(must_be("tokens", "a whole number", tokens))
    if tokens is not None and not 2 <= tokens <= len(text):
        raise OptionError(must_be("tokens", f"from 2 to {len(text)}, the text's own", tokens))
    if len(text) < 2:
        raise DataError(f"the text has {len(text)} tokens; at least 2 are needed to predict one")
    return text[:tokens]


def _words(batches: Sequence[Batch], context: int, stride: int) -> str:
    used = stride * (len(batches) - 1) + int(batches[-1].inputs[0][0].shape[1])
    predicted = sum(int((next_tokens(b, b.inputs[0][0].shape) != IGNORED).sum()) for b in batches)
    return (
        f"{used:,} tokens of text, context {context:,}, stride {stride:,}: {len(batches)} windows, "
        f"{predicted:,} predicted tokens, each once"
    )


def _recorded(model: nn.Module, batch: Batch) -> Program | None:
    """A recorded run, which tells what outputs mean; None for a model that cannot be recorded."""
    try:
        return record_given(model, batch.inputs, "the data")
    except StructureError:
        return None


class _Top:
    """How often the right class is among the first five, of more than five."""

    def __init__(self, causal: bool) -> None:
        self.causal, self.right, self.counted = causal, 0, 0

    def add(self, output: Tensor, batch: Batch, reading: Reading | None) -> None:
        """Add the outputs of one batch; without labels that fit, nothing."""
        dim, labels = None if reading is None else reading.dim, batch.labels
        if dim is None or labels is None or not output.is_floating_point():
            return
        if self.causal:
            labels = next_tokens(batch, tuple(output.shape[:-1]))
        if output.shape[dim] <= _TOP or not fitting(labels, output, dim):
            return
        counted = labels != IGNORED
        hits = output.topk(_TOP, dim).indices == labels.to(output.device).unsqueeze(dim)
        self.right += int(hits.any(dim)[counted].sum())
        self.counted += int(counted.sum())

    def share(self) -> Share | None:
        return Share.of(self.right, self.counted) if self.counted else None


def _evaluation(compared: Comparison, top: _Top, with_dense: bool) -> dict[str, Any]:
    """The figures of an `Evaluation`; refused if there are none."""
    figures: dict[str, Any] = {
        "inputs": compared.inputs,
        "kind": compared.kind,
        "tokens": compared.tokens,
        "top5": top.share(),
    }
    if compared.perplexity is not None:
        figures["perplexity"] = compared.perplexity[1]
    if compared.accuracy is not None:
        figures["top1"] = _share(compared.accuracy[1], compared.counted)
    if with_dense:
        figures |= dict(_against(compared))
    elif compared.accuracy is None and compared.perplexity is None:
        raise DataError(
            "there is nothing to measure: the data has no labels that fit the outputs, and the "
            "model is not a causal language model; give labels, or a dense model to compare with"
        )
    return figures


def _against(compared: Comparison) -> Iterator[tuple[str, Any]]:
    """Figures of the dense model, and of the difference."""
    if compared.perplexity is not None:
        yield "dense_perplexity", compared.perplexity[0]
    if compared.accuracy is not None:
        yield "dense_top1", _share(compared.accuracy[0], compared.counted)
    if not math.isnan(compared.agreement):
        yield "agreement", _share(compared.agreement, compared.answers)
    if compared.cosine is not None:
        yield "cosine", compared.cosine
    yield "output_change", compared.output_change


def _share(value: float, count: int) -> Share:
    return Share.of(round(value * count), count)
