"""Sums by which ranks compare the weights that they begin with."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from meshwright.runtime.weights.alike import sum_of_bits

ROWS = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
COMPLEX = torch.tensor([1 + 2j, 3 - 1j])
KINDS = {
    "scalar": torch.tensor(3.0),
    "empty": torch.ones(0, 3),
    "strided": ROWS.T[:1],
    "bool": torch.tensor([True, False]),
    "half": ROWS.half(),
    "float8": ROWS.to(torch.float8_e4m3fn),
    "complex64": COMPLEX,
    "complex128": COMPLEX.to(torch.complex128),
    "conj": COMPLEX.conj(),
    "negative bit": COMPLEX.conj().imag,
    "coo": ROWS.to_sparse(),
}


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("kind", [*KINDS, "csr", "csc"])
def test_a_change_of_any_kind_of_tensor_changes_its_sum(kind: str) -> None:
    compressed = {"csr": ROWS.to_sparse_csr, "csc": ROWS.to_sparse_csc}
    tensor = KINDS[kind] if kind in KINDS else compressed[kind]()
    assert sum_of_bits(tensor) == sum_of_bits(tensor.clone())
    if kind != "empty":
        assert sum_of_bits(_other(tensor)) != sum_of_bits(tensor)


def _other(tensor: Tensor) -> Tensor:
    if tensor.dtype is torch.bool:
        return torch.ones_like(tensor)
    if tensor.dtype is torch.float8_e4m3fn:
        return (tensor.float() * 3).to(tensor.dtype)
    return tensor * 3
