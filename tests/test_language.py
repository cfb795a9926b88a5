"""Perplexity, cosine and tokens per second in reports."""

from __future__ import annotations

import math
from typing import Any

import language_models as tiny
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import subprune
from subprune.data.batch import Batch
from subprune.data.batches import batches
from subprune.measure.causality import predicts_next
from subprune.measure.compare import vector_cosines
from subprune.measure.language import next_tokens
from subprune.program.record import record
from subprune.report.figures import Report

pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("default")


class Recurrent(nn.Module):
    """A language model without attention, and without any library."""

    def __init__(self, words: int = 9, classes: int = 9) -> None:
        super().__init__()
        self.table, self.body = nn.Embedding(words, 8), nn.GRU(8, 8, batch_first=True)
        self.head = nn.Linear(8, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(self.table(x))[0])


def of(data: Any, model: nn.Module) -> list[Batch]:
    return batches(data, model, None)


def slow_perplexity(model: nn.Module, data: list[dict[str, Tensor]]) -> tuple[float, int]:
    """One token at a time."""
    total, count = 0.0, 0
    for item in data:
        mask = item.get("attention_mask", torch.ones_like(item["input_ids"]))
        with torch.no_grad():
            logits = model(**item).logits.double()
        for n, row in enumerate(item["input_ids"].tolist()):
            for t in range(len(row) - 1):
                if mask[n, t] and mask[n, t + 1]:
                    total -= float(logits[n, t].log_softmax(0)[row[t + 1]])
                    count += 1
    return math.exp(total / count), count


# ---- which models are language models ------------------------------------------------------------


def t5() -> nn.Module:
    import transformers

    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=50, d_model=24, num_heads=4, num_layers=2, d_kv=6, d_ff=20, use_cache=False
    )
    return tiny.noisy(transformers.T5ForConditionalGeneration(config))


IDS = {"input_ids": tiny.tokens(2, 8)}
BOTH = {"input_ids": tiny.tokens(2, 8), "decoder_input_ids": tiny.tokens(2, 8, seed=2)}
MODELS: dict[str, tuple[Any, Any, bool]] = {
    "llama": (tiny.llama, IDS, True),
    "llama with padding": (tiny.llama, tiny.padded(2, 8), True),
    "decoder of t5": (t5, BOTH, True),
    "recurrent": (Recurrent, torch.randint(0, 9, (3, 7)), True),
    "fewer classes": (lambda: Recurrent(9, 4), torch.randint(0, 9, (3, 7)), False),
    "masked words": (lambda: tiny.bert("BertForMaskedLM"), IDS, False),
    "token classes": (lambda: tiny.bert("BertForTokenClassification", num_labels=50), IDS, False),
    "encoder": (tiny.bert, IDS, False),
    "images": (lambda: nn.Conv2d(3, 4, 3), torch.randn(2, 3, 8, 8), False),
}


@pytest.mark.parametrize("name", MODELS)
def test_language_models_are_known_by_what_they_do(name: str) -> None:
    make, data, expected = MODELS[name]
    model = make().eval()
    data = [data] if isinstance(data, dict) else data
    (batch,) = of(data, model)
    assert predicts_next(model, batch, record(model, batch.inputs)) is expected
    assert predicts_next(model, batch) is expected


# ---- what should come ----------------------------------------------------------------------------


def test_next_tokens_leave_out_padding_and_ignored_labels() -> None:
    ids = torch.tensor([[5, 6, 7, 8, 0, 0], [1, 2, 3, 4, 5, 6]])
    mask = torch.tensor([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1]])
    no = -100
    inputs: Any = ((), {"input_ids": ids, "attention_mask": mask})
    found = next_tokens(Batch(inputs, None, 2), (2, 6))
    assert found.tolist() == [[6, 7, 8, no, no, no], [2, 3, 4, 5, 6, no]]
    labels = ids.clone()
    labels[1, :3] = no  # a prompt, of which nothing is to be predicted
    found = next_tokens(Batch(inputs, labels, 2), (2, 6))
    assert found.tolist() == [[6, 7, 8, no, no, no], [no, no, 4, 5, 6, no]]
    shifted = torch.tensor([[6, 7, 8, no, no, no], [2, 3, 4, 5, 6, 9]])
    found = next_tokens(Batch(inputs, shifted, 2), (2, 6))
    assert torch.equal(found, shifted)


# ---- figures of a report -------------------------------------------------------------------------


def pruned(data: Any, **more: Any) -> subprune.Result:
    return subprune.prune(tiny.llama(), data, keep=0.5, n_samples=None, progress=False, **more)


@pytest.mark.parametrize("padding", [False, True])
def test_perplexity_is_that_of_a_slow_loop(padding: bool) -> None:
    data = [tiny.padded(8, seed=s) if padding else {"input_ids": tiny.tokens(8, seed=s)}
            for s in range(3)]  # fmt: skip
    other = [tiny.padded(8, seed=9) if padding else {"input_ids": tiny.tokens(8, seed=9)}]
    result = pruned(data, verify_data=other)
    dense, count = slow_perplexity(result.dense, data)  # type: ignore[arg-type]
    small, _ = slow_perplexity(result.model, data)
    report = result.report
    assert report.fitted.perplexity == pytest.approx((dense, small), rel=1e-4)
    assert report.held_out is not None
    assert report.held_out.perplexity is not None
    assert report.held_out.perplexity[0] == pytest.approx(dense, rel=1e-4)
    assert report.fitted.tokens == report.held_out.tokens == count
    expected = [slow_perplexity(m, other)[0] for m in (result.dense, result.model)]  # type: ignore[arg-type]
    assert report.verified is not None
    assert report.perplexity == report.verified.perplexity == pytest.approx(expected, rel=1e-4)
    assert not any("no accuracy was measured" in note for note in report.notes)


def test_the_report_shows_perplexity_and_tokens_per_second() -> None:
    result = pruned([{"input_ids": tiny.tokens(32)}], time_calls=True)
    report = result.report
    assert report.latency is not None
    assert report.latency_tokens == 32 * 12
    assert report.tokens_per_second == pytest.approx([32 * 12 / s for s in report.latency])
    assert "perplexity: " in str(report)
    assert "tokens per second: " in str(report)
    assert "perplexity, " in report.to_html()
    assert "tokens per second" in report.to_html()
    again = Report.from_json(report.to_json())
    assert again.perplexity == pytest.approx(report.perplexity)
    assert again.latency_tokens == report.latency_tokens


def test_one_sequence_is_timed_by_default() -> None:
    assert pruned([{"input_ids": tiny.tokens(32)}]).report.latency_tokens == 12


def test_logits_that_are_capped_are_answers_all_the_same() -> None:
    """Gemma 2 ends in a tanh, which is not how classes are made elsewhere."""
    import transformers

    torch.manual_seed(0)
    config = transformers.Gemma2Config(**tiny.SIZE, num_key_value_heads=2, use_cache=False)
    model = tiny.noisy(transformers.Gemma2ForCausalLM(config))
    data = [{"input_ids": tiny.tokens(8)}]
    report = subprune.prune(model, data, keep=0.5, progress=False).report
    assert report.fitted.perplexity is not None
    assert report.fitted.kind == "token"


def test_accuracy_of_a_causal_model_is_about_the_next_token() -> None:
    ids = tiny.tokens(8)
    result = pruned([{"input_ids": ids, "labels": ids}])
    with torch.no_grad():
        answers = result.model(input_ids=ids).logits.argmax(-1)
    right = float((answers[:, :-1] == ids[:, 1:]).double().mean())
    assert result.report.fitted.accuracy is not None
    assert result.report.fitted.accuracy[1] == pytest.approx(right)


class Pooled(nn.Module):
    """Sentence embeddings: means over tokens that are no padding, of length 1."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = tiny.bert()

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        hidden = self.encoder(input_ids=input_ids, attention_mask=attention_mask)[0]
        on = attention_mask[..., None].to(hidden)
        return F.normalize((hidden * on).sum(1) / on.sum(1), dim=-1)


@pytest.mark.parametrize("pooled", [False, True])
def test_encoders_have_a_mean_cosine(pooled: bool) -> None:
    model = Pooled().eval() if pooled else tiny.bert()
    data = tiny.padded(24)
    other = tiny.padded(8, seed=5)
    options: dict[str, Any] = {"n_samples": None, "progress": False, "verify_data": [other]}
    result = subprune.prune(model, [data], keep=0.5, **options)

    def slow(item: dict[str, Tensor]) -> float:
        with torch.no_grad():
            both = [m(**item) for m in (model, result.model)]
        a, b = both if pooled else [x.last_hidden_state for x in both]
        cosines = F.cosine_similarity(a, b, dim=-1)
        return float((cosines if pooled else cosines[item["attention_mask"].bool()]).mean())

    report = result.report
    assert report.fitted.cosine == pytest.approx(slow(data), abs=1e-5)
    assert report.cosine == pytest.approx(slow(other), abs=1e-5)
    assert math.isnan(report.agreement)
    assert report.perplexity is None
    assert "mean cosine with the dense model: " in str(report)
    assert "mean cosine on the verification data: " in str(report)
    assert "mean cosine" in report.to_html()
    assert not any("no accuracy was measured" in note for note in report.notes)


def test_classes_and_images_have_no_cosine() -> None:
    net = nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 3))
    report = subprune.prune(net, torch.randn(64, 6), keep=0.5, progress=False).report
    assert report.cosine is None
    assert report.perplexity is None
    assert report.tokens_per_second is None


def test_cosines_of_zero_vectors() -> None:
    a = torch.tensor([[0.0, 0.0], [0.0, 0.0], [1.0, 0.0], [3.0, 4.0]])
    b = torch.tensor([[0.0, 0.0], [1.0, 0.0], [-2.0, 0.0], [4.0, 3.0]])
    assert vector_cosines(a, b).tolist() == pytest.approx([1.0, 0.0, -1.0, 0.96])
