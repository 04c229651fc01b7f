#!/usr/bin/env python3
"""Answers a file of prompts with several `minfer serve` workers, by Ray.

    ray_batch.py IN.jsonl OUT.jsonl --worker http://127.0.0.1:8081 --worker http://127.0.0.1:8082

A line of IN is {"id": ..., "prompt": ...}; OUT has the same ids in the same order, with `text` and `worker`, or `error`.
A worker that is full, draining or gone costs a retry on the next one; a refusal (400) is final. Needs `ray` from PyPI.
"""

import argparse
import json
import sys
import time
import urllib.error
import urllib.request

import ray

ATTEMPTS = 8


def ask(worker, row, options):
    body = {**options, "messages": [{"role": "user", "content": row["prompt"]}]}
    headers = {"content-type": "application/json", "x-request-id": f"batch-{row['id']}"}
    request = urllib.request.Request(f"{worker}/v1/chat/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=600) as answer:
        return json.load(answer)["choices"][0]["message"]["content"]


@ray.remote(num_cpus=0)
def answer(row, workers, first, options):
    """One answer, from the first worker that gives it."""
    why = ""
    for attempt in range(ATTEMPTS):
        worker = workers[(first + attempt) % len(workers)]
        wait = 0.2 * 2**attempt
        try:
            return {"id": row["id"], "text": ask(worker, row, options), "worker": worker}
        except urllib.error.HTTPError as error:
            why = f"{worker}: {error.code} {error.read().decode(errors='replace')}"
            if error.code not in (429, 500, 502, 503):
                break
            wait = float(error.headers.get("retry-after") or wait)
        except OSError as error:
            why = f"{worker}: {error}"
        # The next worker may be free: only a whole round without an answer is worth a long wait.
        time.sleep(min(wait, 10.0) if (attempt + 1) % len(workers) == 0 else 0.05)
    return {"id": row["id"], "error": why}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("input")
    parser.add_argument("output")
    parser.add_argument("--worker", action="append", required=True, help="address, several times")
    parser.add_argument("--each", type=int, default=8, help="requests at once for each worker")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--seed", type=int, default=7)
    args = parser.parse_args()
    workers = [url.rstrip("/") for url in args.worker]
    options = {"max_tokens": args.max_tokens, "temperature": 0, "seed": args.seed}
    with open(args.input) as lines:
        rows = [json.loads(line) for line in lines if line.strip()]

    ray.init(include_dashboard=False, log_to_driver=False)
    running, results = [], {}
    for i, row in enumerate(rows):
        if len(running) == args.each * len(workers):
            done, running = ray.wait(running)
            results.update((r["id"], r) for r in ray.get(done))
        running.append(answer.remote(row, workers, i, options))
    results.update((r["id"], r) for r in ray.get(running))
    ray.shutdown()

    with open(args.output, "w") as out:
        for row in rows:
            out.write(json.dumps(results[row["id"]]) + "\n")
    failed = sum("error" in r for r in results.values())
    by_worker = {w: sum(r.get("worker") == w for r in results.values()) for w in workers}
    print(f"{len(rows)} prompts, {failed} failed; answers by worker: {by_worker}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
