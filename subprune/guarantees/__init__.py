"""What is proven about the selection, next to what was measured."""

from subprune.guarantees.certificates import (
    BudgetGuarantee,
    GroupGuarantee,
    Guarantees,
    group_guarantee,
    guarantees,
)

__all__ = ["BudgetGuarantee", "GroupGuarantee", "Guarantees", "group_guarantee", "guarantees"]
