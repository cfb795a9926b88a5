# %% [markdown]
# # Prune and fine-tune
#
# One-shot pruning goes only so far: at some size, least squares cannot make up for what is gone. What is left is a good place
# to start training from. This journey prunes hard, then repairs the network in two ways: without labels, and with them.

# %%
import torch
from torch.nn import functional as F

import subprune
from subprune.zoo.datasets import load
from subprune.zoo.models import shipped_lenet

torch.manual_seed(0)
model, _ = shipped_lenet()
train, test = load("mnist-sample", "train"), load("mnist-sample", "test")
images, labels = train.inputs(), train.labels.long()  # 4,096 of them
judged = [(test.inputs(torch.arange(2000)), test.labels[:2000].long())]

result = subprune.prune(model, images[:512], compression=16, progress=False)


def top1(network: torch.nn.Module) -> str:
    return str(subprune.evaluate(network, judged).top1)


print("dense  ", top1(model))
print("pruned ", top1(result.model))

# %% [markdown]
# ## Without labels
#
# `recover` trains the small network to answer as the dense one does, on the same kind of inputs. Give it minutes, not
# seconds; and more inputs if you have them. Of all states on the way, the first included, it keeps the one with the
# lowest loss on inputs that it does not train on.

# %%
recovered = subprune.recover(result, images[:2048], minutes=0.1, progress=False)
print(recovered.recovery)
print("recovered", top1(recovered.model))

# %% [markdown]
# ## With labels, in your own loop
#
# The result is an ordinary module: nothing has to be frozen, masked or re-applied.

# %%
small = recovered.model.train()
optimiser = torch.optim.AdamW(small.parameters(), lr=5e-4)
for _ in range(5):
    for rows in torch.randperm(len(images)).split(64):
        optimiser.zero_grad()
        F.cross_entropy(small(images[rows]), labels[rows]).backward()
        optimiser.step()
small.eval()
print("fine-tuned", top1(small))

# %% [markdown]
# ## Again, and saved
#
# A fine-tuned network can be pruned further; what was done to it is remembered, so that the file still loads into the
# original class.

# %%
second = subprune.prune(small, images[:512], compression=1.5, progress=False)
subprune.save(second, "twice.safetensors")
again = subprune.load(shipped_lenet()[0], "twice.safetensors").eval()
print(second.report.summary())
print("pruned twice", top1(again))

# %% [markdown]
# ![The page of the second pruning](pictures/finetune.png)
#
# Fine-tuning on a few hundred images alone can do harm where little was lost
# ([measured](../choosing.md#more-than-once)); use all the training data you have.
