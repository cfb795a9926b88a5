"""Models that other libraries know by name, with the weights and the preprocessing they bring.

Nothing is fetched unless ``--download`` asks for it, and nothing is unpickled: weights are read as
safetensors, or as plain tensors.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from subprune.errors import DataError, OptionError
from subprune.reading.pixels import Prepare

__all__ = ["LIBRARIES", "Loaded", "named_model", "pretrained"]


@dataclass(frozen=True)
class Loaded:
    """A model, and what its library says about it."""

    model: nn.Module
    prepare: Prepare | None = None  # of images
    folder: Path | None = None  # of the transformers library, where its tokenizer may be


def named_model(library: str, name: str, weights: bool, download: bool) -> Loaded:
    """The model of that name. weights: whether it needs those that belong to it; else they are
    random.
    """
    return LIBRARIES[library](name, weights, download)


def _library(module: str, distribution: str, spec: str) -> Any:
    try:
        return import_module(module)
    except Exception as error:  # also one that is installed and does not go with this PyTorch
        first = str(error).strip().splitlines()[:1]
        raise OptionError(
            f"--model {spec} is loaded with {module}, which cannot be imported "
            f"({type(error).__name__}: {''.join(first)[:200]}); pip install {distribution}, or give "
            "package.module:callable"
        ) from error


def _absent(spec: str, what: str) -> OptionError:
    return OptionError(
        f"--model {spec}: {what} not on this machine, and nothing is fetched unasked; give "
        "--download to fetch them, or --weights FILE"
    )


def _refused(spec: str, error: Exception) -> DataError:
    first = "".join(str(error).strip().splitlines()[:1])
    return DataError(f"--model {spec} cannot be loaded: {type(error).__name__}: {first[:200]}")


# ---- timm ----------------------------------------------------------------------------------------


def _timm(name: str, weights: bool, download: bool) -> Loaded:
    spec = f"timm:{name}"
    timm = _library("timm", "timm", spec)
    try:
        model: nn.Module = timm.create_model(name, pretrained=False)
    except Exception as error:  # an unknown name, mostly
        raise _refused(spec, error) from error
    config = dict(getattr(model, "pretrained_cfg", None) or {})
    if weights:
        _fill_from_hub(model, config.get("hf_hub_id") or "", spec, download)
    return Loaded(model, _timm_view(config))


def _fill_from_hub(model: nn.Module, repository: str, spec: str, download: bool) -> None:
    """The weights of a repository, from the cache of huggingface_hub or, if asked for, from the
    hub.
    """
    from safetensors.torch import load_file

    hub = _library("huggingface_hub", "huggingface_hub", spec)
    if not repository:
        raise OptionError(f"--model {spec} comes without weights; give --weights FILE")
    file = "model.safetensors"
    if download:
        place = hub.hf_hub_download(repository, file)
    else:
        place = hub.try_to_load_from_cache(repository, file)
    if not isinstance(place, str):
        raise _absent(spec, f"the weights {repository}/{file} are")
    try:
        model.load_state_dict(load_file(place))
    except Exception as error:  # whatever a damaged file provokes
        raise _refused(spec, error) from error


def _timm_view(config: Mapping[str, Any]) -> Prepare | None:
    if "input_size" not in config:
        return None
    size = int(config["input_size"][-1])
    return central_view(
        size=size,
        shorter=math.floor(size / float(config.get("crop_pct") or 1.0)),
        mean=config.get("mean", (0.0,)),
        std=config.get("std", (1.0,)),
        mode="bicubic" if config.get("interpolation") == "bicubic" else "bilinear",
    )


def central_view(
    *, size: int, shorter: int, mean: Any, std: Any, mode: str = "bilinear"
) -> Prepare:
    """The middle of a resized image, scaled by channel."""
    average, spread = (torch.tensor(tuple(x)).view(-1, 1, 1) for x in (mean, std))

    def prepare(image: Tensor) -> Tensor:
        if image.shape[0] == 1 < len(average):
            image = image.expand(len(average), -1, -1)
        high, wide = image.shape[1:]
        scale = shorter / min(high, wide)
        shape = [max(size, round(n * scale)) for n in (high, wide)]
        larger = F.interpolate(image[None], shape, mode=mode, antialias=True)[0].clamp(0, 1)
        top, left = ((n - size) // 2 for n in shape)
        return (larger[:, top : top + size, left : left + size] - average) / spread

    return prepare


# ---- torchvision ---------------------------------------------------------------------------------


def _torchvision(name: str, weights: bool, download: bool) -> Loaded:
    spec = f"torchvision:{name}"
    models = _library("torchvision.models", "torchvision", spec)
    try:
        model: nn.Module = models.get_model(name, weights=None)
        entry = models.get_model_weights(name).DEFAULT
    except Exception as error:
        raise _refused(spec, error) from error
    if weights:
        file = Path(torch.hub.get_dir()) / "checkpoints" / str(entry.url).rsplit("/", 1)[-1]
        if not file.is_file() and not download:
            raise _absent(spec, f"its weights ({file.name}) are")
        try:
            state = torch.hub.load_state_dict_from_url(
                entry.url, map_location="cpu", check_hash=True, weights_only=True, progress=False
            )
            model.load_state_dict(state)
        except Exception as error:
            raise _refused(spec, error) from error
    return Loaded(model, entry.transforms())


# ---- transformers --------------------------------------------------------------------------------


def pretrained(place: str, spec: str, download: bool = False) -> Loaded:
    """The model of a folder that `save_pretrained` wrote, or of an id; pickled weights are not
    read.
    """
    transformers = _library("transformers", "transformers", spec)
    local = Path(place).is_dir()
    where = {"local_files_only": local or not download}
    try:
        with _offline() if where["local_files_only"] else contextlib.nullcontext():
            config = transformers.AutoConfig.from_pretrained(place, **where)
            config.use_cache = False  # nothing is generated here
            named = (getattr(config, "architectures", None) or ["AutoModel"])[0]
            kind = getattr(transformers, named, transformers.AutoModel)
            model: nn.Module = kind.from_pretrained(
                place, config=config, use_safetensors=True, **where
            )
    except Exception as error:  # whatever a file in it provokes
        if not local and not download and isinstance(error, OSError):
            raise _absent(spec, "its files are") from error
        first = "".join(str(error).strip().splitlines()[:1])[:200]
        raise DataError(
            f"--model {spec} cannot be loaded by transformers: {type(error).__name__}: {first}"
        ) from error
    folder = Path(place) if local else None
    return Loaded(model, _processor(transformers, place, where), folder)


@contextlib.contextmanager
def _offline() -> Iterator[None]:
    """Nothing is asked of the hub: ``local_files_only`` alone still looks for other formats there."""
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def _processor(transformers: Any, place: str, where: Mapping[str, bool]) -> Prepare | None:
    """The preprocessing that is stored with the model, if it takes images; it is not needed for other
    data.
    """
    if not (Path(place) / "preprocessor_config.json").is_file() and Path(place).is_dir():
        return None
    processor: list[Any] = []

    def prepare(image: Tensor) -> Tensor:
        if not processor:
            try:
                processor.append(transformers.AutoImageProcessor.from_pretrained(place, **where))
            except Exception as error:
                raise _refused(place, error) from error
        pixels = (image.expand(3, -1, -1) if image.shape[0] == 1 else image) * 255
        made = processor[0](images=pixels.round().to(torch.uint8), return_tensors="pt")
        inputs: Tensor = made["pixel_values"][0]
        return inputs

    return prepare


def _hugging_face(name: str, weights: bool, download: bool) -> Loaded:
    return pretrained(name, f"hf:{name}", download)


LIBRARIES: dict[str, Callable[[str, bool, bool], Loaded]] = {
    "timm": _timm,
    "torchvision": _torchvision,
    "hf": _hugging_face,
}
"""What may stand before the colon of ``--model LIBRARY:NAME``."""
