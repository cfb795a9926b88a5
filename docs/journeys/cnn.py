# %% [markdown]
# # Prune my CNN
#
# You have a trained convolutional network and some inputs like those it sees in use. You want a smaller network that
# answers the same, without a training run. Here the network is the LeNet that comes with subprune; put your own in its
# place.

# %%
import torch

import subprune
from subprune.zoo.datasets import load
from subprune.zoo.models import LeNet, shipped_lenet

model, _ = shipped_lenet()  # yours: any trained nn.Module, in eval mode or not
images = load("mnist-sample", "train").inputs()[:512]  # yours: a tensor, a Dataset, a DataLoader, …

# %% [markdown]
# ## What can go?
#
# `inspect` runs the model once, on shapes only, and lists the groups of units that can be cut, what each unit costs, and
# why everything else stays.

# %%
print(subprune.inspect(model, images[:1]))

# %% [markdown]
# ## What would a goal mean?
#
# `forecast` takes the same arguments as `prune` and changes nothing. Sizes are exact.

# %%
print(subprune.forecast(model, images, compression=4))

# %% [markdown]
# ## Prune
#
# Your model is not touched: the smaller one is a new object of the same class.

# %%
result = subprune.prune(model, images, compression=4, progress=False)
print(result.report)

# %% [markdown]
# The report leads with inputs that nothing was fitted to: every input is judged by a version of the model that was fitted
# without it. "Error left" is the share of what the next layer received that is lost. The same as a page, with a slider
# for other sizes:

# %%
result.report.save_html("report.html")

# %% [markdown]
# ![The page: agreement and sizes first, then one row for every group](pictures/cnn.png)
#
# ## Is it any good?
#
# With labelled test data you can ask. `evaluate` prints the figures with the protocol they were measured by.

# %%
test = load("mnist-sample", "test")
some = torch.arange(2000)
print(subprune.evaluate(result.model, [(test.inputs(some), test.labels[some].long())], dense=model))

# %% [markdown]
# ## Keep it
#
# One safetensors file. It loads into the original class, which any code of yours already has.

# %%
subprune.save(result, "small.safetensors")
again = subprune.load(LeNet(), "small.safetensors").eval()
assert torch.equal(again(images), result.model.eval()(images))
print(sum(p.numel() for p in model.parameters()), "→", sum(p.numel() for p in again.parameters()))

# %% [markdown]
# **Next:** not accurate enough? Try `refine=4`, or [fine-tune it](finetune.md). Not faster? Ask for `latency="60%"` or
# `round_to=8`: [Choosing a method and a goal](../choosing.md).
