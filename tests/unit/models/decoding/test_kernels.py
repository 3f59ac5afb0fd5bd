"""The kernels for pages, run by Triton's interpreter where there is no GPU."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support.tiny_models import needed

needed("triton")

CHECK = """
import sys
import torch
from shardmill.models.attention import attend
from shardmill.models.decoding.attention import Held, _attend_pages, _store
from shardmill.models.decoding.kernels import attend_pages, store
from shardmill.models.decoding.pages import PAGE_TOKENS, Pages, PageShape, places_of, table_of
from shardmill.models.packed import Pack, _one_by_one
import numpy as np

device = torch.device(sys.argv[1])
dtype, most = (torch.float16, 4e-3) if device.type == "cuda" else (torch.float32, 1e-5)
torch.manual_seed(0)
for heads, shared, width, reach, biased in (
    (4, 2, 32, -1, False), (2, 2, 16, 5, True), (4, 2, 16, 66, True), (2, 1, 64, 5, False),
):
    lengths = np.array([70, 16, 64, 65])
    plain, quick = (Pages(PageShape(1, shared, width, dtype), 12, torch.device(d)) for d in ("cpu", device))
    table = table_of([plain.take(int(n)) for n in lengths], 4)
    places = places_of(torch.from_numpy(table), lengths)
    places[-1] = -1
    k, v = (torch.randn(int(lengths.sum()), shared, width, dtype=dtype) for _ in "kv")
    q = torch.randn(len(lengths), heads, width, dtype=dtype)
    bias = torch.randn(heads, 2 * 40 + 1) if biased else None
    _store(k, v, plain.keys[0], plain.values[0], places)
    store(k.to(device), v.to(device), quick.keys[0], quick.values[0], places.to(device))
    kept = places[places >= 0]
    for one, other in ((plain.keys, quick.keys), (plain.values, quick.values)):
        one, other = (t[0].transpose(1, 2).flatten(0, 1)[kept] for t in (one, other.cpu()))
        assert torch.equal(one, other)
    held = Held(plain, torch.from_numpy(table), torch.tensor([70, 1, 0, 64], dtype=torch.int32))
    expected = _attend_pages(q.float(), plain.keys[0].float(), plain.values[0].float(), held, 0.3, reach, bias)
    back = None if bias is None else bias[:, :41].flip(1).to(device)
    seen = attend_pages(
        q.to(device), quick.keys[0], quick.values[0], held.table.to(device), held.lengths.to(device), 0.3, reach, back
    )
    error = (seen.cpu().float() - expected).abs().max()
    assert error < most, (heads, shared, width, reach, biased, error)

lengths = np.array([70, 3, 1])
starts = np.concatenate([[0], np.cumsum(lengths)])
pack = Pack(torch.from_numpy(starts.astype(np.int32)).to(device), lengths, 70)
q, k, v = (torch.randn(74, 2, 32, device=device, dtype=dtype) for _ in "qkv")
bias = torch.randn(2, 2 * 20 + 1, device=device)
earlier = tuple(torch.randn(64, 2, 32, device=device, dtype=dtype) for _ in "kv")
for seen, by, before in (
    ((-1, -1), bias, None), ((-1, 0), bias, None), ((-1, 0), None, earlier), ((40, 0), None, earlier)
):
    cpu = Pack(pack.starts.cpu(), lengths, 70)
    plain = [t.cpu().float() for t in (q, k, v)]
    told = (None if by is None else by.cpu(), before and tuple(t.cpu().float() for t in before))
    expected = _one_by_one(*plain, cpu, 0.3, seen, *told)
    error = (attend(q, k, v, pack.starts, 70, 0.3, seen, by, before).cpu().float() - expected).abs().max()
    assert error < most, (seen, error)
"""


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_the_kernels_give_what_plain_attention_gives(device: str) -> None:
    """Keys shared by heads, windows, a bias by distance, rows of no token, of a page and of more."""
    interpreted = {"TRITON_INTERPRET": "1"} if device == "cpu" else {}
    subprocess.run([sys.executable, "-W", "ignore", "-c", CHECK, device], check=True, env={**os.environ, **interpreted})
