"""Processes in which torch and transformers are found, as if they were installed, and cannot be imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def run_refused(folder: Path, script: str, *given: str, also: tuple[str, ...] = ()) -> None:
    """Run a script in a process of its own. What it starts refuses them too, and what is `also` named.

    Fails with what the script said.
    """
    for name in ("torch", "transformers", "sentence_transformers", *also):
        (folder / "refused" / name).mkdir(parents=True)
        (folder / "refused" / name / "__init__.py").write_text(f"raise RuntimeError('{name} was imported')\n")
    places = [str(folder / "refused"), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(places)}
    ran = subprocess.run([sys.executable, "-c", script, *given], env=env, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-4000:]
