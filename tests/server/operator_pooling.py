"""A pooling function for a server's --pooling-function."""

import torch


def ends(hidden: torch.Tensor) -> torch.Tensor:
    """First and last row side by side; refuses prompts of 13 tokens."""
    if len(hidden) == 13:
        raise ValueError("thirteen")
    return torch.cat([hidden[0], hidden[-1]])
