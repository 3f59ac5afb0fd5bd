"""A few news items, and a tiny model that makes vectors of their sentences."""

from __future__ import annotations

from pathlib import Path

from tests.support.tiny_models import bert, pooling, write_model

_SENTENCES = [
    "The harbour of Port Vell closes in May.",
    "Divers found cracks in its wall, Mr. Oller said.",
    "The repair costs 3.5 million euros.",
    "Ferries leave from Sant Pere.",
    '"We wait for hours," a passenger said.',
    "Storks nest in the valley again.",
]
NEWS = [
    {
        "id": i,
        "topic": "birds" if i == 5 else "sea",
        "article": " ".join(_SENTENCES[(i + k) % 6] for k in range(3 + i % 3)),
        "gold": _SENTENCES[i],
    }
    for i in range(6)
]


def write_encoder(folder: Path) -> Path:
    return write_model(folder, bert(), [pooling("mean"), ("Normalize", {}, {})])
