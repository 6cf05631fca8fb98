"""What a user of the official `openai` package sees of a service, in one scenario or several.

Prints one line of JSON for each with what was seen and exits with 0, or says on stderr what was wrong and exits with 1.
The package is used as its users use it: a base URL, a key, and nothing patched.
"""

import base64
import json
import struct
import sys
import time
from urllib.parse import quote

import openai
from frame import API_KEY, Wrong, check, parser

MESSAGES = [{"role": "user", "content": "Say something, please."}]
# Greedy: a model with random weights would end a sampled answer wherever it likes.
SAMPLING = {"temperature": 0, "max_tokens": 16}


def check_usage(usage):
    check(usage is not None, "no usage in the answer")
    check(usage.prompt_tokens > 0, f"no prompt tokens counted: {usage}")
    output_tokens = getattr(usage, "completion_tokens", 0) or 0
    check(usage.total_tokens == usage.prompt_tokens + output_tokens, f"the usage does not add up: {usage}")
    return {"prompt": usage.prompt_tokens, "output": output_tokens}


def check_finish(reason):
    check(reason in ("stop", "length"), f"finish_reason is {reason!r}")
    return reason


def chat(client, args):
    answer = client.chat.completions.create(model=args.model, messages=MESSAGES, **SAMPLING)
    check(answer.object == "chat.completion", f"object is {answer.object!r}")
    check(answer.model == args.model, f"asked {args.model!r}, answered by {answer.model!r}")
    check(len(answer.choices) == 1, f"{len(answer.choices)} choices for one asked")
    choice = answer.choices[0]
    check(choice.message.role == "assistant", f"role is {choice.message.role!r}")
    check(choice.message.content, "an empty message")
    return {
        "id": answer.id,
        "text": choice.message.content,
        "finish": check_finish(choice.finish_reason),
        "usage": check_usage(answer.usage),
    }


def read_stream(stream, text_of, started):
    """Reads a stream to its end: pieces of text, then the reason, then one event with the usage alone."""
    pieces, finish, usage, first_s, ids = [], None, None, None, set()
    for event in stream:
        ids.add(event.id)
        check(usage is None, "an event after the one with the usage")
        if not event.choices:
            usage = event.usage
            continue
        text = text_of(event.choices[0])
        if text:
            check(finish is None, "text after finish_reason")
            first_s = first_s or time.monotonic() - started
            pieces.append(text)
        finish = event.choices[0].finish_reason or finish
    check(len(pieces) > 1, f"{len(pieces)} pieces of text: that is no stream")
    check(len(ids) == 1, f"one answer has several ids: {sorted(ids)}")
    return {
        "id": ids.pop(),
        "text": "".join(pieces),
        "pieces": len(pieces),
        "finish": check_finish(finish),
        "usage": check_usage(usage),
        "first_s": round(first_s, 4),
    }


def chat_stream(client, args):
    started = time.monotonic()
    stream = client.chat.completions.create(
        model=args.model,
        messages=MESSAGES,
        **SAMPLING,
        stream=True,
        stream_options={"include_usage": True},
    )
    return read_stream(stream, lambda choice: choice.delta.content, started)


def completions(client, args):
    answer = client.completions.create(model=args.model, prompt="Once upon a time", **SAMPLING)
    check(answer.object == "text_completion", f"object is {answer.object!r}")
    check(answer.model == args.model, f"asked {args.model!r}, answered by {answer.model!r}")
    choice = answer.choices[0]
    check(choice.text, "an empty completion")
    return {
        "id": answer.id,
        "text": choice.text,
        "finish": check_finish(choice.finish_reason),
        "usage": check_usage(answer.usage),
    }


def completions_stream(client, args):
    started = time.monotonic()
    stream = client.completions.create(
        model=args.model,
        prompt="Once upon a time",
        **SAMPLING,
        stream=True,
        stream_options={"include_usage": True},
    )
    return read_stream(stream, lambda choice: choice.text, started)


def stream_close(client, args):
    """Leaves a long stream after a few events, as a user does who has seen enough."""
    stream = client.chat.completions.create(
        model=args.model, messages=MESSAGES, max_tokens=args.tokens, temperature=0, stream=True
    )
    seen = 0
    for event in stream:
        seen += bool(event.choices and event.choices[0].delta.content)
        if seen == args.after:
            break
    stream.close()
    check(seen == args.after, f"the stream ended by itself after {seen} pieces of text")
    return {"pieces": seen}


def embeddings(client, args):
    """The package asks for base64 unless told otherwise, so both ways are tried and compared."""
    texts = ["one", "two, and a little longer"]
    packed = client.embeddings.create(model=args.model, input=texts)
    check(packed.object == "list", f"object is {packed.object!r}")
    check([item.index for item in packed.data] == [0, 1], "the embeddings are out of order")
    sizes = {len(item.embedding) for item in packed.data}
    check(len(sizes) == 1 and sizes != {0}, f"embeddings of different sizes: {sizes}")
    plain = client.embeddings.create(model=args.model, input=texts, encoding_format="float")
    raw = client.embeddings.create(model=args.model, input=texts, encoding_format="base64")
    for number, item in enumerate(plain.data):
        check(isinstance(raw.data[number].embedding, str), "base64 was asked and not given")
        packed_bytes = base64.b64decode(raw.data[number].embedding)
        unpacked = struct.unpack(f"<{len(packed_bytes) // 4}f", packed_bytes)
        for other in (packed.data[number].embedding, unpacked):
            close = all(abs(a - b) < 1e-4 for a, b in zip(item.embedding, other, strict=True))
            check(close, f"embedding {number} depends on its encoding")
    check(packed.data[0].embedding != packed.data[1].embedding, "two texts have one embedding")
    return {"dimensions": sizes.pop(), "usage": check_usage(packed.usage)}


def models(client, args):
    page = client.models.list()
    ids = [model.id for model in page]
    check(all(model.object == "model" for model in page), "an object that is no model")
    check(len(set(ids)) == len(ids), f"a model is listed twice: {ids}")
    check(args.model in ids, f"{args.model!r} is not among {ids}")
    return {"models": ids}


def retrieve(client, args):
    """An id with slashes as the package sends it, plain, and percent-encoded."""
    found = client.models.retrieve(args.model)
    check(found.id == args.model, f"asked for {args.model!r}, got {found.id!r}")
    for path in (quote(args.model), quote(args.model, safe="")):
        again = client.get(f"/models/{path}", cast_to=openai.types.Model)
        check(again.id == args.model, f"/models/{path} gave {again.id!r}")
    return {"id": found.id, "owned_by": found.owned_by}


def not_found(client, args):
    """A model that nobody has: the same typed error on every way to ask for it."""
    ways = {
        "chat": lambda: client.chat.completions.create(model=args.model, messages=MESSAGES),
        "stream": lambda: client.chat.completions.create(model=args.model, messages=MESSAGES, stream=True),
        "completions": lambda: client.completions.create(model=args.model, prompt="a"),
        "embeddings": lambda: client.embeddings.create(model=args.model, input="a"),
        "retrieve": lambda: client.models.retrieve(args.model),
    }
    for way, ask in ways.items():
        try:
            ask()
        except openai.NotFoundError as error:
            check(error.code == "model_not_found", f"{way}: code is {error.code!r}")
            check(args.model in error.message, f"{way}: the message does not name the model: {error.message}")
            message = error.message
        else:
            raise Wrong(f"{way}: {args.model!r} was answered")
    return {"ways": sorted(ways), "message": message}


def unavailable(client, args):
    """A model that is known and has no ready replica now."""
    started = time.monotonic()
    try:
        client.chat.completions.create(model=args.model, messages=MESSAGES)
    except openai.APIStatusError as error:
        check(isinstance(error, openai.InternalServerError), f"the error is a {type(error).__name__}")
        check(error.status_code == 503, f"status is {error.status_code}")
        wait_s = error.response.headers.get("retry-after")
        check(wait_s is not None and wait_s.isdigit(), f"Retry-After is {wait_s!r}")
        check(isinstance(error.body, dict) and error.body.get("message"), f"the body is {error.body!r}")
        return {
            "retry_after_s": int(wait_s),
            "code": error.code,
            "message": error.message,
            "took_s": round(time.monotonic() - started, 3),
        }
    raise Wrong(f"{args.model!r} was answered")


SCENARIOS = {
    "chat": chat,
    "stream": chat_stream,
    "stream-close": stream_close,
    "completions": completions,
    "completions-stream": completions_stream,
    "embeddings": embeddings,
    "models": models,
    "retrieve": retrieve,
    "not-found": not_found,
    "unavailable": unavailable,
}


def main():
    arguments = parser(__doc__)
    arguments.add_argument("scenarios", nargs="+", choices=SCENARIOS, metavar="SCENARIO")
    arguments.add_argument("--retries", type=int, help="the package's own number unless given; 0 turns them off")
    arguments.add_argument("--timeout", type=float, default=120.0, help="seconds for one request (default: %(default)s)")
    arguments.add_argument("--after", type=int, default=3, help="stream-close: pieces of text to read (default: %(default)s)")
    arguments.add_argument("--tokens", type=int, default=900, help="stream-close: tokens to ask for (default: %(default)s)")
    args = arguments.parse_args()

    # Counted by a hook of the HTTP client, which the package documents for this use.
    attempts = []
    # No proxy of the environment applies: the service is on this machine.
    http_client = openai.DefaultHttpxClient(event_hooks={"request": [attempts.append]}, trust_env=False)
    options = {} if args.retries is None else {"max_retries": args.retries}
    with openai.OpenAI(
        base_url=args.base_url, api_key=API_KEY, timeout=args.timeout, http_client=http_client, **options
    ) as client:
        for scenario in args.scenarios:
            attempts.clear()
            try:
                seen = SCENARIOS[scenario](client, args)
            except (Wrong, openai.OpenAIError) as error:
                cause = f" (cause: {error.__cause__!r})" if error.__cause__ else ""
                print(f"{scenario} at {args.base_url}: {type(error).__name__}: {error}{cause}", file=sys.stderr)
                return 1
            print(json.dumps({"scenario": scenario, "model": args.model, "attempts": len(attempts), **seen}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
