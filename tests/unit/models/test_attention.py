"""The packed attention kernel, run by Triton's interpreter where there is no GPU."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support.tiny_models import needed

needed("triton")

CHECK = """
import sys
import numpy as np
import torch
from shardmill.models.attention import attend
from shardmill.models.packed import Pack, _one_by_one

device = sys.argv[1]
dtype, most = (torch.float16, 4e-3) if device == "cuda" else (torch.float32, 1e-5)
torch.manual_seed(0)
every_token, causal, window, causal_window = (-1, -1), (-1, 0), (8, 8), (16, 0)
for heads, key_heads, width, seen, longest in (
    (3, 3, 32, every_token, 70),
    (4, 2, 64, causal, 70),
    (2, 2, 16, window, 70),
    (2, 1, 32, causal_window, 70),
    (1, 1, 32, every_token, 200),
    (1, 1, 128, causal, 200),
):
    lengths = np.array([longest, 33, 1, 64, 5, 65, 2])
    starts = np.concatenate([[0], np.cumsum(lengths)])
    pack = Pack(torch.from_numpy(starts.astype(np.int32)).to(device), lengths, int(lengths.max()))
    q, k, v = (
        torch.randn(int(starts[-1]), n, width, device=device, dtype=dtype) for n in (heads, key_heads, key_heads)
    )
    expected = _one_by_one(q, k, v, pack, 0.3, seen)
    error = (attend(q, k, v, pack.starts, pack.longest, 0.3, seen) - expected).abs().max()
    assert error < most, (heads, key_heads, width, seen, longest, error)

# A bias by distance that ends within a tile, at its border, and beyond each text; lengths at the borders of tiles.
for reach, longest in ((20, 129), (64, 161), (200, 65)):
    lengths = np.array([longest, 1, 31, 32, 33, 63, 64, 65, 2])
    starts = np.concatenate([[0], np.cumsum(lengths)])
    pack = Pack(torch.from_numpy(starts.astype(np.int32)).to(device), lengths, int(lengths.max()))
    q, k, v = (torch.randn(int(starts[-1]), 2, 16, device=device, dtype=dtype) for _ in "qkv")
    bias = 3 * torch.randn(2, 2 * reach + 1, device=device)
    expected = _one_by_one(q, k, v, pack, 1.0, every_token, bias)
    error = (attend(q, k, v, pack.starts, pack.longest, 1.0, every_token, bias) - expected).abs().max()
    assert error < most, (reach, longest, error)
"""


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_the_kernel_gives_what_plain_attention_gives(device: str) -> None:
    """Whole texts, causal, in windows; keys shared by heads; short texts and long, which take different tiles."""
    interpreted = {"TRITON_INTERPRET": "1"} if device == "cpu" else {}
    subprocess.run([sys.executable, "-W", "ignore", "-c", CHECK, device], check=True, env={**os.environ, **interpreted})
