"""Models by name: meshwright's references (`gpt2?layers=7`, `hf:llama?...`) and a DiT of our own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meshwright.models.reference import Reference, parse_reference

Loss = Callable[..., Tensor] | None


class Model(Protocol):
    """What is built, and what it reads."""

    def build(self) -> nn.Module: ...

    def meta(self, batch: int) -> tuple[nn.Module, dict[str, Tensor], Loss]: ...

    def data(self, batch: int, device: torch.device, precision: str) -> dict[str, Tensor]: ...


def model_of(name: str) -> Model:
    return Dit(name) if name.startswith("dit?") else Referred(parse_reference(name))


class Referred:
    """One of meshwright's own references."""

    def __init__(self, reference: Reference) -> None:
        self.reference = reference

    def build(self) -> nn.Module:
        return self.reference.build()

    def meta(self, batch: int) -> tuple[nn.Module, dict[str, Tensor], Loss]:
        return self.reference.meta(batch)

    def data(self, batch: int, device: torch.device, precision: str) -> dict[str, Tensor]:
        settings = dict(self.reference.settings)
        most = int(settings.get("vocab") or settings.get("vocab_size") or 1000)
        found = {}
        for name, (shape, kind) in self.reference.shapes(batch).items():
            classes = 2 if len(shape) == 1 else most
            if kind.startswith("int"):
                found[name] = torch.randint(0, classes, shape, device=device)
            else:
                found[name] = torch.randn(shape, device=device).to(_float(precision))
        return found


class Dit:
    """`dit?layers=8&hidden=768&heads=12&size=32&patch=2`: a diffusion transformer with adaLN-zero blocks on latents."""

    def __init__(self, name: str) -> None:
        given = dict(part.split("=") for part in name.partition("?")[2].split("&") if part)
        self.settings = {"layers": 8, "hidden": 768, "heads": 12, "size": 32, "patch": 2, "classes": 1000}
        self.settings |= {key: int(value) for key, value in given.items()}

    def build(self) -> nn.Module:
        return DiffusionTransformer(**self.settings)

    def meta(self, batch: int) -> tuple[nn.Module, dict[str, Tensor], Loss]:
        with torch.device("meta"):
            return self.build(), self._batch(batch, torch.device("meta"), torch.float32), None

    def data(self, batch: int, device: torch.device, precision: str) -> dict[str, Tensor]:
        return self._batch(batch, device, _float(precision))

    def _batch(self, batch: int, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
        size = self.settings["size"]
        images: dict[str, Any] = dict.fromkeys(("latents", "noise"), (batch, 4, size, size))
        found = {name: torch.randn(shape, device=device, dtype=dtype) for name, shape in images.items()}
        found["times"] = torch.rand(batch, device=device, dtype=dtype)
        found["labels"] = torch.randint(0, self.settings["classes"], (batch,), device=device)
        return found


def _float(precision: str) -> torch.dtype:
    return torch.bfloat16 if precision == "bf16" else torch.float32


class AdaBlock(nn.Module):
    """Attention and a perceptron, each shifted, scaled and gated by the condition."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(hidden, elementwise_affine=False, eps=1e-6)
        self.norm2 = nn.LayerNorm(hidden, elementwise_affine=False, eps=1e-6)
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)
        self.condition = nn.Linear(hidden, 6 * hidden)

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        shift1, scale1, gate1, shift2, scale2, gate2 = self.condition(F.silu(c)).unsqueeze(1).chunk(6, dim=-1)
        x = x + gate1 * self._attend(self.norm1(x) * (1 + scale1) + shift1)
        y = self.norm2(x) * (1 + scale2) + shift2
        found = x + gate2 * self.down(F.gelu(self.up(y), approximate="tanh"))
        assert isinstance(found, Tensor)
        return found

    def _attend(self, x: Tensor) -> Tensor:
        b, n, h = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, h // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        found = self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, h))
        assert isinstance(found, Tensor)
        return found


class DiffusionTransformer(nn.Module):
    """Predicts the noise in latents; the loss is the mean squared error."""

    def __init__(self, layers: int, hidden: int, heads: int, size: int, patch: int, classes: int) -> None:
        super().__init__()
        self.patch, self.size = patch, size
        self.embed = nn.Conv2d(4, hidden, patch, patch)
        self.places = nn.Parameter(torch.zeros(1, (size // patch) ** 2, hidden))
        self.time = nn.Sequential(nn.Linear(256, hidden), nn.SiLU(), nn.Linear(hidden, hidden))
        self.label = nn.Embedding(classes, hidden)
        self.blocks = nn.ModuleList(AdaBlock(hidden, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(hidden, elementwise_affine=False, eps=1e-6)
        self.condition, self.head = nn.Linear(hidden, 2 * hidden), nn.Linear(hidden, patch * patch * 4)
        self.register_buffer("waves", torch.exp(torch.arange(128) * (-9.21 / 128)), persistent=False)

    def forward(self, latents: Tensor, noise: Tensor, times: Tensor, labels: Tensor) -> Tensor:
        t = times.view(-1, 1, 1, 1)
        x = self.embed((1 - t) * latents + t * noise).flatten(2).transpose(1, 2) + self.places
        angles = 1000 * times[:, None] * self.waves.to(times.dtype)
        c = self.time(torch.cat([angles.cos(), angles.sin()], dim=-1)) + self.label(labels)
        for block in self.blocks:
            x = block(x, c)
        shift, scale = self.condition(F.silu(c)).unsqueeze(1).chunk(2, dim=-1)
        x = self.head(self.norm(x) * (1 + scale) + shift)
        n, p = self.size // self.patch, self.patch
        x = x.view(-1, n, n, p, p, 4).permute(0, 5, 1, 3, 2, 4).reshape(-1, 4, self.size, self.size)
        return F.mse_loss(x, noise - latents)
