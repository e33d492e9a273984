"""Files of models, in a folder or in a repository of the Hugging Face hub."""

from __future__ import annotations

import json
import os
from typing import Any

import torch
from torch import Tensor

__all__ = ["load_config_hf", "load_state_dict_hf"]


def load_config_hf(model_name: str) -> dict[str, Any]:
    """The configuration of a model."""
    with open(_file(model_name, "config.json")) as file:
        return json.load(file)


def load_state_dict_hf(
    model_name: str, device: Any = None, dtype: torch.dtype | None = None
) -> dict[str, Tensor]:
    """The parameters of a model as they were saved; ``dtype`` is ignored.

    Conversion is left to the model, whose parameters do not all have the same dtype.
    """
    path = _file(model_name, "pytorch_model.bin")
    return torch.load(path, map_location=device or "cpu", weights_only=True)


def _file(model_name: str, name: str) -> str:
    if os.path.isdir(model_name):
        return os.path.join(model_name, name)
    try:
        from huggingface_hub import hf_hub_download
    except ImportError as error:
        raise ImportError(
            f"MambaLMHeadModel.from_pretrained: {model_name!r} is not a folder, and to download it "
            "needs huggingface_hub: pip install huggingface_hub"
        ) from error
    return hf_hub_download(model_name, name)
