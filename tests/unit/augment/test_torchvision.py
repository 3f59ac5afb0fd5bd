"""The parameters handed to torchvision v2 give the images that `apply` gives, within its clamping and its gray.

torchvision is in a folder of its own, `torchvision` under the environment's prefix, and only a process of its own sees
it: beside another build of torch than it was made for it fails at import, and transformers imports what it finds.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.services import unavailable
from tests.support.waiting import PATIENCE_S

pytest.importorskip("torch")

COMPARE = """
import sys
import torch

try:
    import torchvision
except RuntimeError:
    # Operators of its compiled half, which a torch without CUDA cannot load and transforms do not use.
    for name in [n for n in sys.modules if n.startswith("torchvision")]:
        del sys.modules[name]
    for name in ("nms", "qnms"):
        torch.library.define(f"torchvision::{name}", "(Tensor boxes, Tensor scores, float threshold) -> Tensor")
    import torchvision

from shardmill.augment import augmentation_tensors, get_preset
from shardmill.augment.adapters import apply_with_torchvision
from shardmill.augment.images import apply
from tests.support.waiting import PATIENCE_S

ids = torch.arange(6)
gray = torch.rand((6, 1, 15, 22), generator=torch.Generator().manual_seed(0)).expand(6, 3, 15, 22)
images = 0.3 + 0.2 * gray
params = augmentation_tensors(ids, get_preset("moderate"))
noise = params.pop("noise")
theirs = apply_with_torchvision(images, params)
ours = apply(images, params)
assert not torch.allclose(ours, images, atol=1e-2)
# It clamps, and the weights of its gray add up to 0.9999.
assert torch.allclose(theirs, ours.clamp(0, 1), atol=2e-4), (theirs - ours.clamp(0, 1)).abs().max()
noisy = apply_with_torchvision(images, params | {"noise": noise}, ids=ids, seed=3, epoch=2)
expected = apply(images, {"noise": noise}, ids=ids, seed=3, epoch=2) - images
assert torch.allclose(noisy - theirs, expected, atol=1e-5)
print(torchvision.__version__)
"""


def test_torchvision_makes_the_images_that_apply_makes() -> None:
    folder = Path(sys.prefix) / "torchvision"
    if not folder.is_dir():
        unavailable(f"no torchvision in {folder}; `make test` installs it there")
    code = f"import sys; sys.path.insert(0, {str(folder)!r})\n{COMPARE}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    assert done.stdout
