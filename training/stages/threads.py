"""How many cores this process computes with: set once, at its entry, never by default."""

import torch


def set_threads(num_threads: int) -> None:
    """Compute each operation on `num_threads` cores and one operation at a time.

    Two runs give equal gradients byte for byte only with equal numbers of threads; averaged
    gradients, updates and state roots do not depend on it.
    """
    torch.set_num_threads(num_threads)
    if torch.get_num_interop_threads() != 1:
        torch.set_num_interop_threads(1)
