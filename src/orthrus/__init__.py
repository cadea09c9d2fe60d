"""One vLLM engine that generates and embeds in the same batches, from one copy of the weights."""

__version__ = "0.1.0"
