"""Generation with transformers' own modules: keys and values in pages, rows that join and leave a running batch.

    from shardmill.models.decoding.generator import Generator
    from shardmill.models.decoding.options import GenerationOptions      # no torch

    generator = Generator.open(folder, device, GenerationOptions(max_new_tokens=60, system="Be brief."))
    encoded = generator.encode(["a text", [{"role": "user", "content": "hello"}], None])
    encoded.prompts, encoded.bad                                        # a Prompt or None for each; why by place
    for group in generator.stream(iterator of (key, prompt) or None):
        for key, made in group:                                         # a Completion, or DeviceOutOfMemory
            made.text, made.reason, made.tokens_in, made.tokens_out     # reason: "stop" or "length"

Without a model loaded, `generative.read_generative(folder)` refuses a model of another kind. `generator.limit` is the
longest prompt in tokens, `generator.name` the path that was chosen and why, `generator.precision` its type. `encode`
may run in another thread than `stream`.

Design: docs/design/generation-and-answers.md
"""
