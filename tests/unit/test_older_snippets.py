"""What users of an older library wrote runs with only its import lines changed.

The snippets follow each other in one process, as their reader would type them. What they leave to the reader (an image,
a dataset, a training step) is supplied; a stub that has seen enough of a long loop ends it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SNIPPETS = sorted((Path(__file__).parents[1] / "data/augmentation").glob("*.txt"))
HOMES = {
    r"from src\.distributed import (?=DistributedRangeSplitter)": "from shardmill.ranges import ",
    r"from src\.distributed import ": "from shardmill.augment import ",
    r"from src\.dpa import ": "from shardmill.augment import ",
    r"from src\.batch import ": "from shardmill.batching import ",
    r"from src\.benchmark import ": "from shardmill.bench import ",
}

STUBS = """
import multiprocessing, sys
from shardmill.augment import get_preset, stream_augmentation_chain
from shardmill.batching import BatchStrategy

class Enough(Exception):
    pass

calls = {}
def count(name, most):
    calls[name] = calls.get(name, 0) + 1
    if calls[name] >= most:
        raise Enough

config, image, dataset, samples_processed = get_preset("moderate"), object(), range(1000), 1000
apply_augmentation = lambda image, params: count("images", 2_500)
process_batch = lambda batch: count("batches", 1)
process_dataset = lambda: None
done = multiprocessing.Value("q", 0)
def train_step(params):
    calls["steps"] = calls.get("steps", 0) + 1
    if calls["steps"] % 1250 == 0:
        with done.get_lock():
            done.value += 1250

def run(name, text):
    try:
        exec(compile(text, name, "exec"), globals())
    except Enough:
        pass
"""

DISTRIBUTED = """
import torch.distributed as dist
begin = dist.init_process_group
dist.init_process_group = lambda backend: begin("gloo", init_method=f"file://{sys.argv[1]}", rank=0, world_size=1)
"""


def test_the_snippets_run_with_only_their_imports_changed(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    program = [STUBS, DISTRIBUTED]
    for path in SNIPPETS:
        text = path.read_text()
        for old, new in HOMES.items():
            text = re.sub(old, new, text)
        assert "src." not in text
        program.append(f"run({path.name!r}, {text!r})")
    program.append('assert calls["images"] == 2_500 and calls["batches"] == 2, calls')
    program.append("assert done.value == 8 * 1_000_000 // 32, done.value")
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(program), str(tmp_path / "rendezvous")],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert "Target throughput achieved" in done.stdout
    assert re.search(r"Throughput: [\d.]+ samples/sec", done.stdout)
