from __future__ import annotations

import torch

# The models are tiny: threads would only wait for each other.
torch.set_num_threads(1)
