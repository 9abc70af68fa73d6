"""The other side of an adapter: `peft` beside a model of `transformers`, at our first values."""

from typing import Any

import peft
import torch
from torch import Tensor

from training.config import ModelConfig, whole_model
from training.models.adapters import PREFIX, adapter_of
from training.models.initial import initial_weights


def adapted(base: Any, config: ModelConfig) -> tuple[Any, dict[str, Tensor]]:
    """`base` with an adapter of `peft`, and what is trained of it by the names of its folder."""
    adapter = adapter_of(config)
    settings = peft.LoraConfig(
        r=adapter.rank,
        lora_alpha=adapter.alpha,
        target_modules=list(adapter.targets),
        task_type="CAUSAL_LM",
    )
    model: Any = peft.get_peft_model(base, settings)
    trained = {
        name.replace(".default", ""): parameter
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }
    with torch.no_grad():
        for name, values in initial_weights(config, whole_model(config)).items():
            trained[PREFIX + name].copy_(values)
    return model, trained
