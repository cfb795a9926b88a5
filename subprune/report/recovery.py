"""What a training after pruning brought."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Recovery"]


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """What a training brought, on inputs that it did not see."""

    # "scores": relative error of class scores; "probabilities": KL divergence; None: of numbers
    match: str | None
    loss: tuple[float, float]  # distance from the dense model's answers, before and after
    agreement: tuple[float, float] | None  # share of equal answers; None for numbers
    inputs: int  # that were trained on
    held_out: int  # that were not
    steps: int
    seconds: float

    def __str__(self) -> str:
        before, after = self.loss
        of = {"scores": "error of scores", "probabilities": "KL divergence"}
        text = (
            f"recovered in {self.steps} steps, {self.seconds:.0f} s, on {self.inputs} inputs: on "
            f"{self.held_out} others, {of.get(self.match or '', 'error')} {before:.4g} → {after:.4g}"
        )
        if self.agreement is None:
            return text
        a, b = self.agreement
        return f"{text}, agreement with the dense model {100 * a:.1f}% → {100 * b:.1f}%"
