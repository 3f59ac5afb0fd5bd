"""Draws that were written down once: every distribution gives these bits in NumPy and torch, on any CPU and GPU.

Who trains with the parameters of an epoch must get them again. Where they change on purpose, write the file anew with
NumPy: `python -m tests.golden.test_draws`.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardmill.augment import (
    PRESETS,
    AugmentationConfig,
    augmentation_table,
    choice,
    gen_augmentation_params,
    log_uniform,
    normal,
    uniform,
)
from shardmill.core import random as randoms
from shardmill.core.random import draw5, draw_fine, make_key
from tests.support.libraries import needed
from tests.support.waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]
GOLDEN = Path(__file__).with_name("draws.json")
# A wrong last bit is rare, so many items go into the digest; the values of a few are readable.
IDS = np.array([*range(20_000), (1 << 32) - 1, 1 << 32, (1 << 63) - 1], np.uint64)
SHOWN = 3
U = (np.arange(20_000) + 0.5) / 20_000
TEXTS = ("crop", "pad", "squash")

Columns = dict[str, np.ndarray]
Backend = Callable[[str], Columns]


def _of_kind(make: Callable[..., Any], *args: Any, otherwise: Any) -> AugmentationConfig:
    """The distribution from 24 bits (`rotation`) and from 53 (`fine`), each also for a third of the items."""
    always, gated = make(*args), make(*args, probability=0.3, otherwise=otherwise)
    return AugmentationConfig(rotation=always, contrast=gated, extra={"fine": always, "fine_gated": gated})


CONFIGS = {
    **PRESETS,
    "uniform": _of_kind(uniform, -0.1, 0.7, otherwise=3.0),
    "log_uniform": _of_kind(log_uniform, 1e-5, 30.0, otherwise=1.0),
    "normal": _of_kind(normal, 0.3, 2.5, otherwise=0.0),
    "choice": _of_kind(choice, (0.1, 0.25, 7.5), otherwise=0.0),
    "choice of texts": _of_kind(choice, TEXTS, otherwise="none"),
}
# Each case in the first epoch, and in a later one from another view and seed.
DRAWN = {"": {}, ", later": {"epoch": 3, "view": 5, "seed": (1 << 64) - 1}}
CASES = [*(name + when for name in CONFIGS for when in DRAWN), "draw5", "draw_fine", "log", "exp", "normal quantile"]


def _case(name: str) -> tuple[AugmentationConfig, dict[str, int]]:
    kind, comma, _ = name.partition(",")
    return CONFIGS[kind], DRAWN[", later" if comma else ""]


def numpy_columns(name: str) -> Columns:
    if name in ("draw5", "draw_fine"):
        draws = (draw5 if name == "draw5" else draw_fine)(IDS, make_key(7, "x"), 2, 1)
        return {str(i): column for i, column in enumerate(draws)}
    if name in FUNCTIONS:
        function, values = FUNCTIONS[name]
        return {"0": function(values)}
    config, when = _case(name)
    return augmentation_table(IDS, config, **when)


FUNCTIONS = {
    "log": (randoms.log, U * 1e3),
    "exp": (randoms.exp, U * 1400 - 700),
    "normal quantile": (randoms.normal, np.concatenate([U, U * 1e-9, 1 - U * 1e-9])),
}


def torch_columns(name: str, device: str = "cpu") -> Columns:
    torch = pytest.importorskip("torch")
    from shardmill.augment import augmentation_tensors
    from shardmill.core.random import tensors

    ids = torch.from_numpy(IDS.view(np.int64)).to(device)
    if name in ("draw5", "draw_fine"):
        draws = getattr(tensors, name)(ids, make_key(7, "x"), 2, 1)
        return {str(i): column.cpu().numpy() for i, column in enumerate(draws)}
    if name in FUNCTIONS:
        function, values = FUNCTIONS[name]
        return {"0": function(torch.from_numpy(values).to(device)).cpu().numpy()}
    config, when = _case(name)
    found = {key: column.cpu().numpy() for key, column in augmentation_tensors(ids, config, **when).items()}
    # Texts come as indices into the choices, with `otherwise` after the last.
    return {key: np.array([*TEXTS, "none"])[c] if c.dtype.kind == "i" else c for key, c in found.items()}


def encode(columns: Columns) -> dict[str, Any]:
    return {name: {"first": _show(c[:SHOWN]), "last": _show(c[-SHOWN:]), **_digest(c)} for name, c in columns.items()}


def _show(values: np.ndarray) -> list[str]:
    return [value if isinstance(value, str) else value.hex() for value in values.tolist()]


def _digest(column: np.ndarray) -> dict[str, str]:
    data = "\n".join(column.tolist()).encode() if column.dtype.kind == "U" else column.astype("<f8").tobytes()
    return {"blake2b": hashlib.blake2b(data, digest_size=16).hexdigest()}


def gpu_columns(name: str) -> Columns:
    return torch_columns(name, "cuda")


BACKENDS = [numpy_columns, torch_columns, pytest.param(gpu_columns, marks=pytest.mark.gpu)]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.__name__)
def test_every_backend_draws_the_golden_values(backend: Backend, name: str) -> None:
    assert encode(backend(name)) == json.loads(GOLDEN.read_text())[name]


@pytest.mark.parametrize("name", [name + when for name in CONFIGS for when in DRAWN])
def test_a_single_item_has_the_golden_values(name: str) -> None:
    config, when = _case(name)
    golden = json.loads(GOLDEN.read_text())[name]
    for place in range(SHOWN):
        found = gen_augmentation_params(int(IDS[place]), config, **when)
        shown = {key: value if isinstance(value, str) else float(value).hex() for key, value in found.items()}
        assert shown == {key: column["first"][place] for key, column in golden.items()}


DRAW = """
import json
from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__
from tests.golden.test_draws import CASES, encode, numpy_columns, torch_columns
drawn = {"chosen": [name for name in __cpu_dispatch__ if __cpu_features__[name]]}
for name, draw in {"numpy": numpy_columns, "torch": torch_columns}.items():
    drawn[name] = {case: encode(draw(case)) for case in CASES}
print(json.dumps(drawn))
"""


def test_a_cpu_of_few_instructions_draws_the_golden_values() -> None:
    """NumPy and torch choose their code by what the CPU has; here they are told that it has little."""
    from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__

    needed("torch")
    chosen = [name for name in __cpu_dispatch__ if __cpu_features__[name]]
    little = {
        "NPY_DISABLE_CPU_FEATURES": " ".join(chosen),
        "ATEN_CPU_CAPABILITY": "default",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
    }
    how: dict[str, Any] = {"capture_output": True, "text": True, "timeout": PATIENCE_S, "cwd": ROOT}
    done = subprocess.run([sys.executable, "-c", DRAW], env={**os.environ, **little}, **how)
    assert done.returncode == 0, done.stderr
    golden = json.loads(GOLDEN.read_text())
    assert json.loads(done.stdout) == {"numpy": golden, "torch": golden, "chosen": []}


def test_the_file_has_every_case_and_no_other() -> None:
    assert list(json.loads(GOLDEN.read_text())) == CASES


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps({name: encode(numpy_columns(name)) for name in CASES}, indent=1) + "\n")
