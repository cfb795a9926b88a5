# %% [markdown]
# # Compare methods on my own model
#
# Which method is best for *your* network and *your* data? All methods share budgets, data and measurements, so a loop is
# all it takes.

# %%
import torch

import subprune
from subprune.zoo.datasets import load
from subprune.zoo.models import shipped_lenet

model, _ = shipped_lenet()
train, test = load("mnist-sample", "train"), load("mnist-sample", "test")
images, labels = train.inputs()[:256], train.labels[:256].long()
judged = [(test.inputs(torch.arange(2000)), test.labels[:2000].long())]

# %% [markdown]
# The names: `subprune methods` on the command line lists them with their parts.

# %%
print(", ".join(subprune.METHODS))

# %% [markdown]
# ## The same goal for all
#
# Without labels, the agreement with the dense model says which is better; with labels, the accuracy does. `fit="keep"`
# leaves the weights of the readers as they are, which shows how much the reweighting brings.

# %%
variants = {
    "auto (the default)": {},
    "asym-in-change": {"method": "asym-in-change"},
    "weight norm": {"method": "layer-weight-norm"},
    "weight norm, old weights": {"method": "layer-weight-norm", "fit": "keep"},
    "act × grad, labels": {"method": "layer-act-grad"},
    "random": {"method": "layer-random"},
}
rows = []
for name, options in variants.items():
    result = subprune.prune(
        model, [(images, labels)], compression=8, progress=False, time_calls=False, **options
    )
    figures = subprune.evaluate(result.model, judged, dense=model)
    rows.append((name, figures.top1.value, figures.agreement.value, result.report.seconds))

print(f"{'':26}   top-1  same answers  seconds")
for name, top1, agreement, seconds in sorted(rows, key=lambda row: -row[1]):
    print(f"{name:26} {top1:7.1%} {agreement:13.1%} {seconds:8.1f}")

# %% [markdown]
# ## Which layers hurt?
#
# The error curves show, for every group, what any number of units would leave. On the page all have the same scale, and
# the slider shows what other sizes would cost.

# %%
result = subprune.prune(model, images, compression=8, method="layer-in-change", progress=False)
result.report.save_html("curves.html")
for group in result.plan.groups:
    half = group.errors[group.units // 2]
    print(
        f"{group.name}: {len(group.kept)} of {group.units} kept; half of them would leave {half:.2%}"
    )

# %% [markdown]
# ![Error curves of all groups on one scale, and the slider](pictures/compare.png)
#
# One network and one draw of images prove little: repeat with `seed=` before you decide. How the methods compare on
# larger networks is in [Accuracy](../results-accuracy.md) and [ResNet56](../results-resnet56.md).
