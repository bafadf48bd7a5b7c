"""Layers of `torch.nn` that are more than one op, and those that draw random numbers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bench.zoo.hard import CLASSES, WIDTH, Hard, entry, images, sequences, words


class Attention(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 4, dropout=dropout, batch_first=True)
        self.last = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        out, weights = self.attention(x, x, x, key_padding_mask=x[..., 0] > 1.5, need_weights=True)
        return nn.functional.cross_entropy(self.last(out.mean(1)), y) + weights.pow(2).mean()


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 32, dropout=0.0, batch_first=True)
        self.encoder, self.last = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return nn.functional.cross_entropy(self.last(self.encoder(x, mask=mask, is_causal=True).mean(1)), y)


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], **settings: object) -> None:
        super().__init__()
        self.rnn = kind(WIDTH, 12, batch_first=True, **settings)
        self.last = nn.LazyLinear(CLASSES)
        self.last(torch.zeros(1, 24 if settings.get("bidirectional") else 12))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        out, _ = self.rnn(x)
        return nn.functional.cross_entropy(self.last(out[:, -1]), y)


class Cell(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.last = nn.GRUCell(WIDTH, 12), nn.Linear(12, CLASSES)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        state = x.new_zeros(x.shape[0], 12)
        for part in x.unbind(1):
            state = self.cell(part, state)
        return nn.functional.cross_entropy(self.last(state), y)


class Packed(Recurrent):
    """A packed sequence: lengths taken from the data."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        lengths = (x[..., 0] > -3).sum(1).cpu()
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        _, (state, _) = self.rnn(packed)
        return nn.functional.cross_entropy(self.last(state[-1]), y)


class Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bag, self.last = nn.EmbeddingBag(12, WIDTH, mode="mean"), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.last(self.bag(x)), y)


def _image(*layers: nn.Module) -> nn.Module:
    class Image(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(*layers)
            with torch.no_grad():
                width = self.layers.eval()(torch.zeros(1, 3, 8, 8)).mean((2, 3)).shape[1]
            self.last = nn.Linear(width, CLASSES)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return nn.functional.cross_entropy(self.last(self.layers(x).mean((2, 3))), y)

    return Image()


def _conv() -> nn.Module:
    return _image(
        nn.Conv2d(3, 8, 3, padding=1, padding_mode="circular"), nn.GroupNorm(2, 8), nn.SiLU(),
        nn.Conv2d(8, 8, 3, padding=2, dilation=2, groups=4), nn.PixelUnshuffle(2), nn.MaxPool2d(2),
        nn.ConvTranspose2d(32, 8, 2, stride=2), nn.Upsample(scale_factor=2, mode="bilinear"), nn.AdaptiveAvgPool2d(3),
    )  # fmt: skip


def _pools() -> nn.Module:
    return _image(
        nn.Conv2d(3, 8, 3, padding="same"), nn.PReLU(8), nn.LPPool2d(2, 2), nn.ReflectionPad2d(1),
        nn.LocalResponseNorm(3), nn.AvgPool2d(2, ceil_mode=True), nn.AdaptiveMaxPool2d(2), nn.ChannelShuffle(2),
    )  # fmt: skip


class Dropped(Hard):
    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.3)

    def between(self, x: Tensor) -> Tensor:
        return self.drop(x.relu())


class Noise(Hard):
    """Random numbers of its own: noise, a uniform mask, a Gumbel softmax."""

    def between(self, x: Tensor) -> Tensor:
        noisy = x + 0.1 * torch.randn_like(x)
        kept = torch.rand(x.shape[0], 1) > 0.2
        return nn.functional.gumbel_softmax(noisy, tau=1.0) * kept + noisy


class Vae(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(WIDTH, 12), nn.Linear(6, WIDTH)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        mean, log_variance = self.encode(x).chunk(2, -1)
        z = torch.distributions.Normal(mean, (0.5 * log_variance).exp()).rsample()
        return nn.functional.mse_loss(self.decode(z), x) + 0.01 * (mean.pow(2) + log_variance.exp()).mean()


class Shuffled(Hard):
    """A permutation of the batch: mixup."""

    def between(self, x: Tensor) -> Tensor:
        return 0.7 * x + 0.3 * x[torch.randperm(x.shape[0])]


ENTRIES = [
    entry("multihead-attention", Attention, sequences),
    entry("transformer-encoder", Encoder, sequences),
    entry("lstm", lambda: Recurrent(nn.LSTM, num_layers=2), sequences),
    entry("gru-bidirectional", lambda: Recurrent(nn.GRU, bidirectional=True), sequences),
    entry("gru-cell", Cell, sequences),
    entry("packed-lstm", lambda: Packed(nn.LSTM), sequences),
    entry("embedding-bag", Bag, words),
    entry("convolutions", _conv, images),
    entry("pools", _pools, images),
    entry("dropout", Dropped, reference="alone"),
    entry("attention-dropout", lambda: Attention(0.2), sequences, reference="alone"),
    entry("noise-gumbel", Noise, reference="alone"),
    entry("vae-rsample", Vae, reference="alone"),
    entry("mixup-randperm", Shuffled, reference="alone"),
]
