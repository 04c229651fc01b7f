#!/usr/bin/env python3
"""The official Python clients of OpenAI, Anthropic and Ollama against `minfer serve`.

  clients.py BINARY MODEL.gguf [--schemas 100]

Makes a virtual environment with the clients on first use (in $MINFER_CLIENTS, default ~/.cache/minfer/clients). Starts
the server itself, prints a line per check, and exits 1 if one failed. Without network it says SKIPPED and exits 77.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys

PACKAGES = ["openai==2.*", "anthropic==0.*", "ollama==0.*", "jsonschema==4.*"]
HOME = pathlib.Path(os.environ.get("MINFER_CLIENTS", pathlib.Path.home() / ".cache/minfer/clients"))
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 30},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "kind": {"enum": ["cat", "dog", "bird"]},
    },
    "required": ["name", "age", "kind"],
    "additionalProperties": False,
}
TOOL = {
    "name": "get_weather",
    "description": "The weather in a city",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 30}},
        "required": ["city"],
        "additionalProperties": False,
    },
}


def inside_clients():
    """Goes on in an environment that has the clients."""
    python = HOME / "bin" / "python"
    wanted = HOME / "wanted"
    if not wanted.exists() or wanted.read_text() != " ".join(PACKAGES):
        subprocess.check_call([sys.executable, "-m", "venv", str(HOME)])
        if subprocess.call([str(python), "-m", "pip", "install", "--quiet", *PACKAGES]):
            print("SKIPPED: the clients cannot be fetched (no network?); they were NOT tried")
            sys.exit(77)
        wanted.write_text(" ".join(PACKAGES))
    os.execv(python, [str(python), *sys.argv])


class Server:
    """A server with a model, and a second one that asks for a key."""

    def __init__(self, binary, model, *more):
        command = [binary, "serve", model, "--port", "0", "-c", "2048", "--no-log", *more]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.port = json.loads(self.process.stdout.readline())["port"]
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        if self.process.wait(60) != 0:
            raise SystemExit(f"the server ended with {self.process.returncode}")


class Checks:
    def __init__(self):
        self.failed = 0

    def check(self, what, act):
        try:
            told = act()
            print(f"ok     {what}{': ' + str(told) if told else ''}", flush=True)
        except Exception as error:  # every kind is a failure of its check, and the others go on
            self.failed += 1
            print(f"FAILED {what}: {type(error).__name__}: {error}", flush=True)


def expect(condition, what=""):
    if not condition:
        raise AssertionError(what)


def raises(kind, act, status=None):
    try:
        act()
    except kind as error:
        expect(status is None or error.status_code == status, f"status {error.status_code}: {error}")
        return str(error)[:100]
    raise AssertionError(f"no {kind.__name__}")


def user(text):
    return [{"role": "user", "content": text}]


def openai_checks(checks, server, schemas):
    import jsonschema
    import openai

    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    model = client.models.list().data[0].id
    chat = client.chat.completions.create

    def answer(**more):
        return chat(model=model, messages=user("Name a fruit."), max_tokens=24, **more)

    def streamed():
        whole = answer(seed=7).choices[0].message.content
        parts, usage = [], None
        for chunk in answer(seed=7, stream=True, stream_options={"include_usage": True}):
            parts += [c.delta.content or "" for c in chunk.choices]
            usage = chunk.usage or usage
        expect("".join(parts) == whole, f"{''.join(parts)!r} is not {whole!r}")
        expect(usage.completion_tokens > 0)
        return usage.completion_tokens

    def seeds():
        texts = {answer(seed=3, temperature=t).choices[0].message.content for t in [1.0] * 3}
        expect(len(texts) == 1, texts)
        expect(len(answer(n=3, seed=3, temperature=1.0).choices) == 3)

    def logprobs():
        content = answer(logprobs=True, top_logprobs=3, temperature=0).choices[0].logprobs.content
        expect(all(len(t.top_logprobs) == 3 and t.logprob <= 0 for t in content))

    def tools(choice):
        tool = [{"type": "function", "function": TOOL}]
        said = chat(model=model, messages=user("How is the weather in Oslo?"), tools=tool, tool_choice=choice,
                    parallel_tool_calls=False, max_tokens=200, seed=1).choices[0]
        if choice == "auto":
            return said.finish_reason
        expect(said.finish_reason == "tool_calls", said)
        call = said.message.tool_calls[0]
        jsonschema.validate(json.loads(call.function.arguments), TOOL["parameters"])
        after = [*user("How is the weather in Oslo?"), said.message.model_dump(exclude_none=True),
                 {"role": "tool", "tool_call_id": call.id, "content": "rain"}]
        return chat(model=model, messages=after, tools=tool, max_tokens=16, seed=1).choices[0].finish_reason

    def tool_stream():
        tool = [{"type": "function", "function": TOOL}]
        chunks = chat(model=model, messages=user("Weather in Rome?"), tools=tool, tool_choice="required",
                      parallel_tool_calls=False, max_tokens=200, seed=1, stream=True)
        calls = [c for chunk in chunks for c in (chunk.choices[0].delta.tool_calls or [])]
        expect(calls and json.loads(calls[0].function.arguments))

    def schema():
        form = {"type": "json_schema", "json_schema": {"name": "pet", "schema": SCHEMA, "strict": True}}
        stopped = 0
        for seed in range(schemas):
            said = chat(model=model, messages=user("Invent a pet, as JSON."), response_format=form, seed=seed,
                        max_tokens=120).choices[0]
            if said.finish_reason == "stop":
                jsonschema.validate(json.loads(said.message.content), SCHEMA)
                stopped += 1
        expect(stopped >= 0.95 * schemas, f"{stopped} of {schemas} ended")
        return f"{stopped} of {schemas} ended, all of these fit"

    def responses():
        def ask(**more):
            return client.responses.create(model=model, input="Name a fruit.", max_output_tokens=20, store=False,
                                           extra_body={"seed": 5}, **more)

        text = ask().output_text
        streamed = "".join(e.delta for e in ask(stream=True) if e.type == "response.output_text.delta")
        expect(text and text == streamed, f"{text!r} {streamed!r}")

    def completion():
        said = client.completions.create(model=model, prompt="One, two,", max_tokens=8, logprobs=2, echo=True)
        expect(said.choices[0].text.startswith("One, two,"))

    def context():
        long = chat_error = raises(openai.BadRequestError, lambda: chat(model=model, messages=user("word " * 3000)), 400)
        expect("context" in long or "maximum" in chat_error)

    checks.check("openai list", lambda: model)
    checks.check("openai chat", lambda: answer().choices[0].message.content)
    checks.check("openai stream with usage", streamed)
    checks.check("openai seeds and n", seeds)
    checks.check("openai logprobs", logprobs)
    named = {"type": "function", "function": {"name": TOOL["name"]}}
    for choice in ["auto", "required", named]:
        checks.check(f"openai tools, {choice}", lambda choice=choice: tools(choice))
    checks.check("openai tools in a stream", tool_stream)
    checks.check("openai JSON schema", schema)
    checks.check("openai responses", responses)
    checks.check("openai completions", completion)
    bad = openai.BadRequestError
    checks.check("openai embeddings refused", lambda: raises(bad, lambda: client.embeddings.create(model=model, input="x"), 400))
    checks.check("openai no such model", lambda: raises(openai.NotFoundError, lambda: chat(model="gpt", messages=user("x")), 404))
    checks.check("openai unknown field", lambda: raises(bad, lambda: answer(extra_body={"mood": 1}), 400))
    checks.check("openai bad value", lambda: raises(bad, lambda: answer(temperature=3), 400))
    checks.check("openai schema that cannot be honoured", lambda: raises(bad, lambda: answer(response_format={
        "type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "array", "uniqueItems": True}}}), 400))
    checks.check("openai context", context)


def anthropic_checks(checks, server):
    import anthropic

    client = anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)
    model = "default"
    create = client.messages.create

    def ask(**more):
        return create(model=model, max_tokens=24, messages=user("Name a fruit."), extra_body={"seed": 5}, **more)

    def streamed():
        whole = ask().content[0].text
        with client.messages.stream(model=model, max_tokens=24, messages=user("Name a fruit."),
                                    extra_body={"seed": 5}) as stream:
            text = "".join(stream.text_stream)
            usage = stream.get_final_message().usage
        expect(text == whole and usage.output_tokens > 0, f"{text!r} {whole!r}")

    def tools():
        tool = {"name": TOOL["name"], "description": TOOL["description"], "input_schema": TOOL["parameters"]}
        question = user("How is the weather in Oslo?")
        said = create(model=model, max_tokens=200, messages=question, tools=[tool], extra_body={"seed": 1},
                      tool_choice={"type": "any", "disable_parallel_tool_use": True})
        expect(said.stop_reason == "tool_use", said)
        call = next(block for block in said.content if block.type == "tool_use")
        expect(list(call.input) == ["city"])
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "rain"}
        after = [*question, {"role": "assistant", "content": said.content}, {"role": "user", "content": [result]}]
        return create(model=model, max_tokens=16, messages=after, tools=[tool]).stop_reason

    def counts():
        counted = client.messages.count_tokens(model=model, messages=user("Name a fruit.")).input_tokens
        usage = ask().usage
        expect(counted == usage.input_tokens + (usage.cache_read_input_tokens or 0))
        return counted

    model = next(iter(client.models.list())).id
    checks.check("anthropic messages", lambda: ask().content[0].text)
    checks.check("anthropic stream", streamed)
    checks.check("anthropic tools", tools)
    checks.check("anthropic count_tokens", counts)
    checks.check("anthropic bad value", lambda: raises(anthropic.BadRequestError, lambda: ask(temperature=2), 400))
    checks.check("anthropic no such model", lambda: raises(
        anthropic.NotFoundError, lambda: create(model="claude", max_tokens=5, messages=user("x")), 404))


def ollama_checks(checks, server):
    import jsonschema
    import ollama

    client = ollama.Client(host=server.url)
    model = client.list().models[0].model
    options = {"seed": 5, "num_predict": 24}

    def chat():
        whole = client.chat(model=model, messages=user("Name a fruit."), options=options).message.content
        parts = client.chat(model=model, messages=user("Name a fruit."), options=options, stream=True)
        expect("".join(p.message.content for p in parts) == whole)
        return whole

    def schema():
        said = client.chat(model=model, messages=user("Invent a pet."), format=SCHEMA, options={"seed": 1})
        jsonschema.validate(json.loads(said.message.content), SCHEMA)

    def tools():
        tool = {"type": "function", "function": TOOL}
        return client.chat(model=model, messages=user("Weather in Oslo?"), tools=[tool], options=options).done_reason

    def refused(act):
        try:
            act()
        except ollama.ResponseError as error:
            return f"{error.status_code} {error.error[:60]}"
        raise AssertionError("no error")

    checks.check("ollama list", lambda: model)
    checks.check("ollama chat and stream", chat)
    checks.check("ollama generate", lambda: client.generate(model=model, prompt="Name a fruit.", options=options).response)
    checks.check("ollama schema", schema)
    checks.check("ollama tools", tools)
    checks.check("ollama show", lambda: client.show(model).modelinfo["general.architecture"])
    checks.check("ollama ps", lambda: expect(client.ps().models[0].model == model))
    checks.check("ollama embed refused", lambda: refused(lambda: client.embed(model=model, input="x")))
    checks.check("ollama no such model", lambda: refused(lambda: client.chat(model="llama9", messages=user("x"))))


def key_checks(checks, server):
    import openai

    def client(key):
        return openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0)

    checks.check("openai with a key", lambda: client("secret").models.list().data[0].id)
    checks.check("openai with a wrong key", lambda: raises(
        openai.AuthenticationError, lambda: client("other").models.list(), 401))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("model")
    parser.add_argument("--schemas", type=int, default=100, help="seeds of the JSON schema check")
    args = parser.parse_args()
    if pathlib.Path(sys.prefix).resolve() != HOME.resolve():
        inside_clients()
    checks = Checks()
    with Server(args.binary, args.model) as server:
        openai_checks(checks, server, args.schemas)
        anthropic_checks(checks, server)
        ollama_checks(checks, server)
    with Server(args.binary, args.model, "--api-key", "secret") as server:
        key_checks(checks, server)
    print(f"{checks.failed} failed")
    sys.exit(bool(checks.failed))


if __name__ == "__main__":
    main()
