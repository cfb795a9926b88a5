# %% [markdown]
# # Deploy with ONNX
#
# A pruned model is a smaller dense model, so every exporter and runtime takes it as it is. `export` writes the file,
# loads it again, runs it beside PyTorch with another batch size too, and keeps it only if the answers agree.
# (`pip install 'subprune[export]'`, after subprune itself.)

# %%
import numpy as np
import onnxruntime
import torch

import subprune
from subprune.zoo.datasets import load
from subprune.zoo.models import shipped_lenet

model, _ = shipped_lenet()
images = load("mnist-sample", "train").inputs()[:512]

# %% [markdown]
# ## Widths that hardware likes
#
# `round_to=8` cuts layers to multiples of eight; one that is left whole, as `fc2` is here with its 84 neurons, keeps the
# width it had. `latency="60%"` would search for widths that meet a measured time instead.

# %%
result = subprune.prune(model, images, compression=2, round_to=8, only="fc*", progress=False)
print(result.plan.counts)
print(result.report.summary())

# %% [markdown]
# ## Export and check

# %%
done = subprune.export(result, "small.onnx")
print(done)

# %% [markdown]
# ## Run it where there is no PyTorch

# %%
session = onnxruntime.InferenceSession("small.onnx", providers=["CPUExecutionProvider"])
name = session.get_inputs()[0].name
answers = session.run(None, {name: images[:100].numpy()})[0].argmax(1)
with torch.no_grad():
    expected = result.model.eval()(images[:100]).argmax(1).numpy()
assert np.array_equal(answers, expected)
print(f"{len(answers)} answers, all the same as PyTorch's")

# %% [markdown]
# ![The page with the measured latency and its spread](pictures/deploy.png)
#
# `small.pt2` instead of `small.onnx` writes a `torch.export` file. On the command line:
# `subprune export small --model lenet-mnist --onnx`. More in [Saving, loading, exporting](../files.md).
