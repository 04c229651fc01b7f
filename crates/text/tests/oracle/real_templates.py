"""Writes tests/data/real-templates.json: what Jinja2 renders with the templates inside the test models.

Run with the PyPI packages `jinja2` and `gguf`: python3 real_templates.py MODELS_FOLDER > ../data/real-templates.json
"""
import json
import pathlib
import sys

import gguf

from templates import CONVERSATIONS, FLAGS, environment, outcome

MODELS = ["smollm2-135m-q4_1", "qwen2.5-coder-0.5b-q4_k_m"]


def main():
    env = environment()
    results = {}
    for model in MODELS:
        reader = gguf.GGUFReader(pathlib.Path(sys.argv[1]) / f"{model}.gguf")
        source = reader.fields["tokenizer.chat_template"].contents()
        results[model] = {key: [outcome(env, source, conversation, generate) for generate in FLAGS]
                          for key, conversation in CONVERSATIONS.items()}
    print(json.dumps(results, ensure_ascii=True, indent=1))


main()
