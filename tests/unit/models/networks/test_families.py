"""Every family beside transformers: the same hidden states, with NumPy and with OpenVINO."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardmill.models.networks.arrays import ArrayNetwork
from shardmill.models.networks.families import describe
from shardmill.models.networks.stored import read_weights
from shardmill.models.networks.unknown import NotDescribed
from shardmill.models.plain import pad
from tests.unit.models.networks.cases import CASES, Case

pytestmark = pytest.mark.model

torch = pytest.importorskip("torch")
# Texts of one token, at, below and beyond the windows of ModernBERT, T5's farthest bucket, and the table of positions.
LENGTHS = (1, 2, 7, 8, 9, 20, 33, 60)


def _rows(pad_id: int, lengths: tuple[int, ...] = LENGTHS) -> list[np.ndarray[Any, Any]]:
    random = np.random.default_rng(3)
    rows = [random.integers(6, 120, size=n).astype(np.int32) for n in lengths]
    # The padding id as a token of the text itself.
    rows[-1][4:6] = pad_id
    return rows


def _network(folder: Path) -> tuple[Any, Any]:
    config = json.loads((folder / "config.json").read_text())
    weights = read_weights(folder)
    return describe(config, weights), weights


def _expected(model: Any, ids: np.ndarray[Any, Any], mask: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    model = model.encoder if hasattr(model, "decoder") else model
    model = getattr(model, "bert", model)
    with torch.inference_mode():
        made = model(input_ids=torch.from_numpy(ids), attention_mask=torch.from_numpy(mask)).last_hidden_state
    return np.asarray(made.numpy())


def _worst_cosine(seen: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> float:
    lengths = np.linalg.norm(seen, axis=-1) * np.linalg.norm(expected, axis=-1)
    return float(((seen * expected).sum(axis=-1) / lengths).min())


def _pad_id(model: Any) -> int:
    return 1 if model.config.model_type == "mpnet" else int(model.config.pad_token_id or 0)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_hidden_states_are_those_of_transformers(case: Case, tmp_path: Path) -> None:
    model = case.make(tmp_path)
    network, weights = _network(tmp_path)
    ids, mask = pad(_rows(_pad_id(model)), _pad_id(model))
    expected, real = _expected(model, ids, mask), mask > 0
    plain = ArrayNetwork(network, weights)
    assert _worst_cosine(plain(ids, mask)[real], expected[real]) >= 0.999999
    np.testing.assert_allclose(plain(ids, mask)[real], expected[real], atol=2e-4, rtol=2e-3)
    openvino = pytest.importorskip("openvino")
    from shardmill.models.networks.graph import build_graph

    graph = openvino.Core().compile_model(build_graph(network, weights), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    seen = graph((ids, mask))[0]
    assert np.isfinite(seen).all()
    assert _worst_cosine(seen[real], expected[real]) >= 0.99999


@pytest.mark.parametrize("name", ["bert", "modernbert", "t5"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_weights_are_read_as_they_are(name: str, dtype: str, tmp_path: Path) -> None:
    model = CASES[name].make(tmp_path, dtype)
    network, weights = _network(tmp_path)
    ids, mask = pad(_rows(0), 0)
    seen = ArrayNetwork(network, weights)(ids, mask)[mask > 0]
    assert _worst_cosine(seen, _expected(model, ids, mask)[mask > 0]) >= 0.999999


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_defaults_are_those_of_transformers(case: Case, tmp_path: Path) -> None:
    """A config without a key describes the same network as one that has it as transformers would take it."""
    import transformers

    said = getattr(transformers, case.config)().to_dict()

    class Names(dict[str, Any]):
        def __contains__(self, name: object) -> bool:
            return str(name).endswith((".weight", ".bias")) and "emb_ln" not in str(name)

        def __iter__(self) -> Any:
            return iter(())

    bare = {"model_type": said["model_type"]}
    described = []
    for config in (bare, said):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("shardmill.models.networks.families._check_weights", lambda *_: None)
            described.append(describe(config, Names()))  # type: ignore[arg-type]
    bare_network, full_network = described
    assert bare_network.layers == full_network.layers
    assert bare_network.positions == full_network.positions


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model_type": "qwen3"}, "its family qwen3 is not among"),
        ({"hidden_act": "xielu"}, "its activation is xielu"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type: 'relative_key'"),
        ({"is_decoder": True}, "is_decoder: True"),
        ({"a_new_option": 3}, "a_new_option, which is not known"),
        ({"num_hidden_layers": 4}, "its weights lack encoder.layer.3"),
        ({"num_hidden_layers": 2}, "its weights have encoder.layer.2"),
    ],
)
def test_what_is_not_known_is_refused_by_name(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    CASES["bert"].make(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    with pytest.raises(NotDescribed, match=said):
        describe({**config, **change}, read_weights(tmp_path))


def test_published_names_of_nomic(tmp_path: Path) -> None:
    """The weights as they were published: other names, and three matrices stored as one."""
    from safetensors.numpy import save_file

    model = CASES["nomic"].make(tmp_path)
    state = {name: value.numpy() for name, value in model.state_dict().items() if value.dim()}
    published: dict[str, Any] = {}
    for i in range(3):
        at = f"layers.{i}"
        parts = [state.pop(f"{at}.self_attn.{part}_proj.weight") for part in "qkv"]
        published[f"encoder.{at}.attn.Wqkv.weight"] = np.concatenate(parts)
    renamed = {
        "self_attn.o_proj": "attn.out_proj",
        "up_proj": "fc11",
        "gate_proj": "fc12",
        "down_proj": "fc2",
        "post_attention_layernorm": "norm1",
        "post_mlp_layernorm": "norm2",
        "embeddings.LayerNorm": "emb_ln",
    }
    for name, value in state.items():
        for new, old in renamed.items():
            name = name.replace(new, old)
        published[f"encoder.{name}" if name.startswith("layers") else name] = np.ascontiguousarray(value)
    save_file(published, tmp_path / "model.safetensors")
    config = {
        "model_type": "nomic_bert",
        "n_embd": 32,
        "n_head": 4,
        "n_layer": 3,
        "n_inner": 48,
        "n_positions": 64,
        "activation_function": "swiglu",
        "layer_norm_epsilon": 1e-12,
        "rotary_emb_base": 1000,
        "rotary_emb_fraction": 1.0,
        "prenorm": False,
        "qkv_proj_bias": False,
        "vocab_size": 120,
    }
    weights = read_weights(tmp_path)
    ids, mask = pad(_rows(0), 0)
    seen = ArrayNetwork(describe(config, weights), weights)(ids, mask)[mask > 0]
    assert _worst_cosine(seen, _expected(model, ids, mask)[mask > 0]) >= 0.999999
