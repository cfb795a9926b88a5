# %% [markdown]
# # Extend: my own selector, my own operation
#
# Two things people add. A **selector** says which units stay; everything else (budgets, reweighting, checks, reports)
# works with it as with the built-in ones. A **rule for an operation** tells subprune what a custom op does to its
# dimensions, so that the layers around it can be pruned.

# %%
import torch
from torch import Tensor, nn

import subprune

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 5))
inputs = torch.randn(512, 16)

# %% [markdown]
# ## A selector in ten lines
#
# A function that ranks the units of a group, best first. This one keeps the units with the most energy where they are
# read; `view.statistics` has `G = BᵀB` of every layer that reads the group.


# %%
@subprune.method("most-energy")
def most_energy(view: subprune.View) -> list[int]:
    """Units with the most energy at the inputs of the layers that read them."""
    energy = torch.zeros(view.n_units, dtype=torch.float64)
    for s in view.statistics:
        own = s.units >= 0  # columns of this group
        energy.index_add_(0, s.units[own], s.gram.diagonal()[own])
    return energy.argsort(descending=True, stable=True).tolist()


for method in ("most-energy", "layer-random", "asym-in-change"):
    report = subprune.prune(model, inputs, method=method, keep=0.5, progress=False).report
    print(
        f"{method:16} same answers: {report.agreement:.1%}, output change {report.output_change:.2%}"
    )

# %% [markdown]
# It has a report like any other:

# %%
mine = subprune.prune(model, inputs, method="most-energy", keep=0.5, progress=False)
mine.report.save_html("mine.html")

# %% [markdown]
# ![The page of a method of one's own](pictures/extend.png)
#
# ## An operation that subprune does not know
#
# What is not understood stays whole, and its name is the reason:


# %%
@torch.library.custom_op("journey::mixture", mutates_args=())
def mixture(features: Tensor, mixing: Tensor) -> Tensor:
    return features @ mixing


@mixture.register_fake
def _(features: Tensor, mixing: Tensor) -> Tensor:
    return features.new_empty(features.shape[0], mixing.shape[1])


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(16, 32)
        self.mixing = nn.Parameter(torch.randn(32, 4))

    def forward(self, x: Tensor) -> Tensor:
        return mixture(torch.relu(self.fc(x)), self.mixing)


print(subprune.find_groups(Mixed(), inputs).refused)

# %% [markdown]
# It multiplies by a weight: `Product` says which argument is which, and which dimension of the weight is summed over and
# which one is made. Every cut is still checked against the masked model: a wrong rule is found out, not believed.

# %%
product = subprune.Product(activation="features", weight="mixing", summed=0, made=1)
subprune.register_rule(mixture, like=product)
result = subprune.prune(Mixed(), inputs, keep=0.5, progress=False)
print(result.plan.counts)
assert result.plan.counts == {"fc": 16}

# %% [markdown]
# Targets, fits and allocators are added in the same way: [Architecture](../architecture.md#four-recipes). What a selector
# may look at and return: [Adding a method](../adding-a-method.md); rules for operations that keep shapes, norms and whole
# modules: [Operations of your own](../own-operations.md).
