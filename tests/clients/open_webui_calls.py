"""The two calls that Open WebUI 0.12 makes to a connection of the kind "OpenAI", made as it makes them: with aiohttp, its
headers, a body that is already text, and a stream that is read in lines.

Open WebUI itself is not installed: with what it needs, a torch with CUDA among it, it takes several gigabytes.

Prints one line of JSON with what was seen and exits with 0, or says on stderr what was wrong and exits with 1.
"""

import asyncio
import json
import sys

import aiohttp
from frame import API_KEY, check, parser, run

HEADERS = {"Content-Type": "application/json", "Authorization": f"Bearer {API_KEY}"}


async def models(args):
    """Its list of models: of an answer without `error` everything under `data`, by `id`."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10), trust_env=True) as session:
        async with session.get(f"{args.base_url}/models", headers=HEADERS, cookies={}) as response:
            answer = await response.json()
    check("error" not in answer, f"an error: {answer}")
    ids = [model.get("id") or model.get("name") for model in answer["data"]]
    check(args.model in ids, f"{args.model!r} is not among {ids}")
    return {"models": ids}


async def ask(args, session, model, **more):
    payload = {
        "stream": True,
        "model": model,
        "messages": [{"role": "user", "content": "Say something, please."}],
        "temperature": 0,
        "stream_options": {"include_usage": True},
        **more,
    }
    return await session.request(
        method="POST", url=f"{args.base_url}/chat/completions", data=json.dumps(payload), headers=HEADERS, cookies={}
    )


async def lines_of(response):
    """The events of a stream as they come, whatever they were cut into."""
    async for line in response.content:
        line = line.decode("utf-8").strip()
        if line.startswith("data:"):
            yield line.removeprefix("data:").strip()


async def chat(args, session):
    response = await ask(args, session, args.model, max_tokens=16)
    kind = response.headers.get("Content-Type", "")
    check(response.status == 200 and "text/event-stream" in kind, f"{response.status} {kind}")
    pieces, usage, last = [], None, None
    async for data in lines_of(response):
        last = data
        if data == "[DONE]":
            continue
        event = json.loads(data)
        usage = event.get("usage") or usage
        if event["choices"]:
            pieces.append(event["choices"][0]["delta"].get("content") or "")
    response.close()
    check(last == "[DONE]", f"the last event is {last!r}")
    check(usage and usage["total_tokens"] > 0, f"the usage is {usage}")
    return {"text": "".join(pieces)}


async def not_found(args, session):
    """An error is looked for in an answer that is no stream, by its status, and shown to the user as it is."""
    response = await ask(args, session, args.unknown)
    check("text/event-stream" not in response.headers.get("Content-Type", ""), "an error that is a stream")
    answer = await response.json()
    check(response.status == 404 and args.unknown in answer["error"]["message"], f"{response.status} {answer}")
    response.close()
    return {"message": answer["error"]["message"]}


async def stop(args, session):
    """The user presses the button: the answer is closed where it stands."""
    response = await ask(args, session, args.model, max_tokens=5000, ignore_eos=True)
    seen = 0
    async for _ in lines_of(response):
        seen += 1
        if seen == 4:
            break
    response.close()
    check(seen == 4, f"the stream ended by itself after {seen} events")
    return {"left_after": seen}


async def everything(args):
    seen = await models(args)
    connector = aiohttp.TCPConnector(limit=0, limit_per_host=0, ttl_dns_cache=300)
    async with aiohttp.ClientSession(connector=connector, trust_env=True) as session:
        for call in (chat, not_found, stop):
            seen |= await call(args, session)
    return seen


def main():
    return run("open webui's calls", parser(__doc__), lambda args: asyncio.run(everything(args)), [aiohttp.ClientError])


if __name__ == "__main__":
    sys.exit(main())
