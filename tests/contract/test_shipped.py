"""What is shipped for Kubernetes, rendered with a reader's own registry, namespace and bucket."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.libraries import needed

yaml = needed("yaml")
from tests.support.manifest_lint import lint  # noqa: E402
from tests.support.shipped import OTHERS, assert_the_readers_own, copy_for_reader, render_parts  # noqa: E402
from tools.manifests import OVERLAYS  # noqa: E402

KUBECTL = shutil.which("kubectl") or ""
pytestmark = pytest.mark.skipif(not KUBECTL, reason="no kubectl: the tests on a cluster render with its own")


def kustomize(place: Path) -> list[Any]:
    done = subprocess.run([KUBECTL, "kustomize", str(place)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


@pytest.fixture(scope="module")
def of_a_reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_for_reader(tmp_path_factory.mktemp("reader") / "kubernetes")


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_one_file_is_all_that_a_reader_changes(of_a_reader: Path, overlay: str) -> None:
    objects = kustomize(of_a_reader / "overlays" / overlay)
    assert lint(objects) == []
    assert_the_readers_own(objects, OVERLAYS[overlay])


@pytest.mark.parametrize("parts", OTHERS, ids="-".join)
def test_parts_compose(of_a_reader: Path, parts: tuple[str, ...]) -> None:
    objects = render_parts(of_a_reader, parts, kustomize)
    assert lint(objects) == []
    assert_the_readers_own(objects, parts)
