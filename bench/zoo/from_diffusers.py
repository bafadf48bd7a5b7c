"""Denoising models and an autoencoder of `diffusers` at small sizes; the target is the noise."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from bench.zoo.entry import BATCH, Batch, Case, Entry, three, without_dropout


class Denoiser(nn.Module):
    """The model and its loss: what a training script of diffusers writes."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, target: Tensor, **given: Tensor) -> Tensor:
        predicted = self.model(**given, return_dict=False)[0]
        return nn.functional.mse_loss(predicted[:, : target.shape[1]], target)


def _denoiser(model: nn.Module, **given: Any) -> Case:
    def batch() -> Batch:
        found = {name: make() for name, make in given.items()}
        first = next(iter(found.values()))
        return {"target": torch.randn_like(first), **found}

    return Case(Denoiser(without_dropout(model)), three(batch))


def _noisy(channels: int, size: int) -> Any:
    return lambda: torch.randn(BATCH, channels, size, size)


def _times() -> Tensor:
    return torch.randint(0, 1000, (BATCH,))


def _unet() -> Case:
    import diffusers

    model = diffusers.UNet2DModel(
        sample_size=16, in_channels=3, out_channels=3, layers_per_block=1, block_out_channels=(16, 32),
        down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        norm_num_groups=8, attention_head_dim=8,
    )  # fmt: skip
    return _denoiser(model, sample=_noisy(3, 16), timestep=_times)


def _unet_condition() -> Case:
    import diffusers

    model = diffusers.UNet2DConditionModel(
        sample_size=16, in_channels=4, out_channels=4, layers_per_block=1, block_out_channels=(16, 32),
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        norm_num_groups=8, attention_head_dim=8, cross_attention_dim=24,
    )  # fmt: skip
    text = lambda: torch.randn(BATCH, 6, 24)  # noqa: E731
    return _denoiser(model, sample=_noisy(4, 16), timestep=_times, encoder_hidden_states=text)


def _dit() -> Case:
    import diffusers

    model = diffusers.DiTTransformer2DModel(
        num_attention_heads=4, attention_head_dim=8, in_channels=4, num_layers=2, sample_size=8, patch_size=2,
        num_embeds_ada_norm=10, norm_num_groups=4,
    )  # fmt: skip
    for module in model.modules():
        if type(module).__name__ == "LabelEmbedding":
            module.dropout_prob = 0.0
    labels = lambda: torch.randint(0, 10, (BATCH,))  # noqa: E731
    return _denoiser(model, hidden_states=_noisy(4, 8), timestep=_times, class_labels=labels)


def _sd3() -> Case:
    import diffusers

    model = diffusers.SD3Transformer2DModel(
        sample_size=8, patch_size=2, in_channels=4, num_layers=2, attention_head_dim=8, num_attention_heads=4,
        joint_attention_dim=24, caption_projection_dim=32, pooled_projection_dim=16, out_channels=4,
        pos_embed_max_size=8,
    )  # fmt: skip
    text = lambda: torch.randn(BATCH, 6, 24)  # noqa: E731
    pooled = lambda: torch.randn(BATCH, 16)  # noqa: E731
    return _denoiser(
        model, hidden_states=_noisy(4, 8), timestep=_times, encoder_hidden_states=text, pooled_projections=pooled
    )


class Autoencoder(nn.Module):
    """Trains the mean of the latent, without drawing from it."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        latent = self.model.encode(images).latent_dist
        return nn.functional.mse_loss(self.model.decode(latent.mode()).sample, images) + 1e-3 * latent.kl().mean()


def _autoencoder() -> Case:
    import diffusers

    model = diffusers.AutoencoderKL(
        block_out_channels=(8, 16), norm_num_groups=4, latent_channels=4, sample_size=16,
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
    )  # fmt: skip
    return Case(Autoencoder(model), three(lambda: {"images": torch.randn(BATCH, 3, 16, 16)}))


def _entry(name: str, build: Any, pins: tuple[str, ...] = ("tp=2", "zero=3")) -> Entry:
    return Entry(f"diffusers:{name}", "diffusers", build, pins)


ENTRIES = [
    _entry("UNet2DModel", _unet),
    _entry("UNet2DConditionModel", _unet_condition, ("zero=3", "tp=2")),
    _entry("DiTTransformer2DModel", _dit),
    _entry("SD3Transformer2DModel", _sd3, ("zero=3", "tp=2")),
    _entry("AutoencoderKL", _autoencoder),
]
