"""What the LoRA part needs from inside vLLM 0.32.0, imported in one place."""

from vllm.lora.layers import LoRAMapping
from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU
from vllm.platforms.cpu import CpuPlatform

STOCK_CPU_WRAPPER = "vllm.lora.punica_wrapper.punica_cpu.PunicaWrapperCPU"
"""What `CpuPlatform.get_punica_wrapper` returns as long as nobody has replaced it."""

__all__ = [
    "STOCK_CPU_WRAPPER",
    "CpuPlatform",
    "LoRAMapping",
    "PunicaWrapperCPU",
]
