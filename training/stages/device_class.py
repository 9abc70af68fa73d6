"""Under which name do devices compute equal bytes? Thresholds of checking stand by this name."""

import platform

import torch


def device_class(device: torch.device) -> str:
    """Kind, model and torch version: equal for devices that compute equal bytes."""
    if device.type == "cuda":
        return f"cuda/{torch.cuda.get_device_name(device)}/torch-{torch.__version__}"
    capability = torch.backends.cpu.get_cpu_capability()
    return f"cpu/{platform.machine()}/{capability}/torch-{torch.__version__}"
