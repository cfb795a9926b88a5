"""`evaluate`: figures by a protocol."""

from __future__ import annotations

import math
from typing import Any

import language_models as tiny
import pytest
import torch
from torch import nn

import subprune
from subprune.data.batches import batches
from subprune.errors import DataError, OptionError
from subprune.measure.compare import compare
from subprune.measure.measurements import outputs
from subprune.measure.quality import windows
from subprune.program.record import record

pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("default")


@pytest.mark.parametrize(("context", "stride"), [(10, 10), (10, 4), (10, 1), (64, 64), (7, 5)])
def test_windows_predict_every_token_once_with_the_context_they_have(
    context: int, stride: int
) -> None:
    model, text = tiny.llama(), tiny.tokens(1, 37)[0]
    found = subprune.evaluate(model, text, context=context, stride=stride, progress=False)
    total = count = 0
    done = 1  # the first token is never predicted
    for start in range(0, len(text), stride):
        row = text[start : start + context]
        with torch.no_grad():
            logits = model(input_ids=row[None]).logits[0].double().log_softmax(-1)
        for t in range(max(done, start + 1), start + len(row)):
            total -= float(logits[t - start - 1, text[t]])
            count += 1
        done = max(done, start + len(row))
        if done == len(text):
            break
    assert found.tokens == count
    assert found.perplexity == pytest.approx(math.exp(total / count), rel=1e-5)
    if stride < context:
        assert count == len(text) - 1
    for words in (f"37 tokens of text, context {context}, stride {stride}", f"{count} predicted"):
        assert words in found.protocol
    assert len(windows(text, context, stride)) == int(found.protocol.split(": ")[1].split()[0])


def test_a_text_is_compared_with_the_dense_model() -> None:
    data = [{"input_ids": tiny.tokens(32)}]
    result = subprune.prune(tiny.llama(), data, keep=0.5, progress=False)
    text = tiny.tokens(1, 60, seed=3)[0]
    both = subprune.evaluate(
        result.model, text.numpy(), dense=result.dense, context=20, tokens=40, progress=False
    )
    alone = subprune.evaluate(result.dense, text[:40], context=20, progress=False)  # type: ignore[arg-type]
    assert both.dense_perplexity == alone.perplexity
    assert both.agreement is not None
    assert alone.agreement is None
    assert alone.top1 is not None
    assert f"dense model: {both.dense_perplexity:.4g}" in str(both)


def test_classifiers_have_top_1_and_top_5_with_standard_errors() -> None:
    torch.manual_seed(0)
    net, x, y = nn.Linear(6, 9).eval(), torch.randn(50, 6), torch.randint(9, (50,))
    found = subprune.evaluate(net, (x, y), progress=False)
    ranks = (net(x) > net(x).gather(1, y[:, None])).sum(1)
    for share, most in ((found.top1, 1), (found.top5, 5)):
        p = float((ranks < most).double().mean())
        assert share is not None
        assert share.value == pytest.approx(p)
        assert share.error == pytest.approx(math.sqrt(p * (1 - p) / 50))
    assert found.protocol == "50 inputs, as given"


def test_encoders_are_compared_by_cosine() -> None:
    model, data = tiny.bert(), tiny.padded(6)
    small = subprune.prune(model, [data], keep=0.5, progress=False).model
    found = subprune.evaluate(small, [data], dense=model, progress=False)
    (batch,) = batches([data], model, None)
    program = record(model, batch.inputs)
    both = (outputs(model, [batch]), outputs(small, [batch]))
    assert found.cosine == pytest.approx(compare(*both, [batch], program).cosine)
    assert found.agreement is None


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no labels": ({"model": nn.Linear(6, 3), "data": torch.randn(4, 6)}, "nothing to measure"),
    "an encoder": (
        {"model": tiny.bert, "data": tiny.tokens(1, 9)[0]},
        "not a causal language model",
    ),
    "short": ({"data": torch.tensor([3])}, "has 1 tokens; at least 2"),
    "long context": ({"context": 65}, "context must be at most 64, the model's own"),
    "no context": ({"context": 1}, "context must be a whole number from 2 on, got 1"),
    "stride": ({"context": 8, "stride": 9}, "stride must be a whole number from 1 to 8, got 9"),
    "tokens": ({"tokens": 99}, "tokens must be from 2 to 40, the text's own, got 99"),
    "no text": ({"data": [{"input_ids": tiny.tokens()}], "stride": 3}, "stride is for texts"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_measured_is_refused(case: str) -> None:
    options, text = WRONG[case]
    given = {"model": tiny.llama, "data": tiny.tokens(1, 40)[0], "progress": False, **options}
    model = given.pop("model")
    model = model if isinstance(model, nn.Module) else model()
    with pytest.raises((DataError, OptionError), match=text):
        subprune.evaluate(model, **given)
