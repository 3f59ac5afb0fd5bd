"""Layers are compiled once for all of them and for every number of tokens, and GELU is joined to what is before it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.tiny_models import bert, mpnet, needed, pooling, qwen3, t5, write_model

torch = needed("torch")

from shardmill.core.devices import Device  # noqa: E402
from shardmill.models.compiling import compile_layers, join_gelu  # noqa: E402
from shardmill.models.encoder import Encoder  # noqa: E402
from shardmill.models.folder import read_folder  # noqa: E402
from shardmill.models.kernels import Tried  # noqa: E402
from shardmill.models.packed import PackedEncoder  # noqa: E402
from shardmill.models.torch_kernels import choose_with_torch  # noqa: E402


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """What was given to be compiled. It is run as it is: making machine code of it is torch's part."""
    seen: list[Any] = []

    def keep(graph: Any, inputs: Any, **options: Any) -> Any:
        seen.append(graph)
        return graph.forward

    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", keep)
    torch._dynamo.reset()
    yield seen
    torch._dynamo.reset()


BATCHES = ([30, 7], [1], [2], [1, 1], [200, 3, 3, 1], [5] * 64, [64], [16, 16])


# The first layer of T5 makes the bias that the others are given.
GRAPHS = {"bert": (bert(max_position_embeddings=300), 1), "qwen3": (qwen3(), 1), "mpnet": (mpnet(), 1)}
GRAPHS |= {"t5": (t5(num_layers=4), 2), "umt5": (t5("UMT5", num_layers=4), 1)}


@pytest.mark.parametrize("name", GRAPHS)
def test_one_graph_serves_every_layer_and_every_batch(tmp_path: Path, graphs: list[Any], name: str) -> None:
    config, count = GRAPHS[name]
    folder = read_folder(write_model(tmp_path, config, [pooling("mean")]))
    plain, compiled = (PackedEncoder(folder, device="cpu", pad_id=0) for _ in range(2))
    compiled.compile()
    choose = np.random.default_rng(0)
    for lengths in BATCHES:
        rows = [choose.integers(1000, 2000, n, dtype=np.int32) for n in lengths]
        assert np.allclose(plain.encode(rows), compiled.encode(rows), atol=2e-3)
    assert len(graphs) == count
    assert compiled.name.endswith("packed, compiled")


def test_one_graph_serves_every_padded_batch(tmp_path: Path, graphs: list[Any]) -> None:
    folder = read_folder(write_model(tmp_path, bert(max_position_embeddings=300), [pooling("mean")]))
    plain, compiled = (Encoder(folder, device="cpu", pad_id=0) for _ in range(2))
    compiled.compile()
    choose = np.random.default_rng(0)
    for lengths in BATCHES:
        rows = [choose.integers(1000, 2000, n, dtype=np.int32) for n in lengths]
        assert np.allclose(plain.encode(rows), compiled.encode(rows), atol=1e-5)
    assert len(graphs) == 1
    assert compiled.name == "torch float32, padded, compiled"


@pytest.mark.parametrize(("work_bytes", "compiles"), [(1 << 60, True), (1 << 10, False)])
def test_a_cpu_compiles_when_there_is_much_to_do(
    tmp_path: Path, graphs: list[Any], work_bytes: int, compiles: bool
) -> None:
    """It compiles the precision that is faster on this CPU; which one that is, is not ours to say."""
    folder = read_folder(write_model(tmp_path, bert(), [pooling("mean")]))
    golden = [np.arange(1000, 1000 + n, dtype=np.int32) for n in (3, 9, 20)]
    device = Device("cpu", "cpu", work_bytes=work_bytes)
    choice = choose_with_torch(Tried(folder, 0, 64, golden, 0), device)
    assert (", padded, compiled" in choice.why) == bool(graphs) == compiles


def test_gelu_is_joined_only_to_a_linear_that_nobody_else_needs() -> None:
    class Block(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.up, self.bare, self.shared = (torch.nn.Linear(8, 8, bias=b) for b in (True, False, True))

        def forward(self, x: Any) -> Any:
            gelu, shared = torch.nn.functional.gelu, self.shared(x)
            return gelu(self.up(x)) + gelu(self.bare(x)) + gelu(shared) + shared + gelu(x)

    block, x = Block().eval(), torch.randn(1, 5, 8)
    captured, _ = torch._dynamo.export(block)(x)
    join_gelu(captured)
    targets = [node.target for node in captured.graph.nodes]
    assert targets.count(torch.ops.shardmill.linear_gelu.default) == 1
    assert torch.allclose(captured(x), block(x), atol=2e-3)


def test_a_model_without_layers_is_not_compiled() -> None:
    with pytest.raises(LookupError):
        compile_layers(torch.nn.Linear(2, 2))
