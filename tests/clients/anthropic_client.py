"""What a user of the official `anthropic` package sees of a service: models, messages, streams, counts, and errors.

The engine behind the service is the scripted one of the tests, which answers each request as its `script` says.

Prints one line of JSON with what was seen and exits with 0, or says on stderr what was wrong and exits with 1.
"""

import json
import sys

import anthropic
from frame import API_KEY, Wrong, check, parser, run

MESSAGES = [{"role": "user", "content": "Say something, please."}]
PIECES = ["Something", ", ", "said."]
MESSAGE = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "content": [{"type": "text", "text": "".join(PIECES)}],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": {"input_tokens": 7, "output_tokens": len(PIECES)},
}
REFUSAL = {"type": "error", "error": {"type": "rate_limit_error", "message": "mine"}, "request_id": "req_1"}
STREAM_HEAD = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def whole(status, value):
    """A script that answers with one object."""
    body = json.dumps(value)
    head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return {"script": [["send", head + body]]}


def events(model, last):
    """A script that streams the pieces and then does the `last` steps."""
    begun = {**MESSAGE, "model": model, "content": [], "stop_reason": None}
    said = [("message_start", {"message": begun})]
    said += [("content_block_start", {"index": 0, "content_block": {"type": "text", "text": ""}})]
    said += [("content_block_delta", {"index": 0, "delta": {"type": "text_delta", "text": piece}}) for piece in PIECES]
    steps = [["send", STREAM_HEAD]]
    for kind, data in said:
        steps.append(["send", chunk(f"event: {kind}\ndata: {json.dumps({'type': kind, **data})}\n\n")])
    return {"script": steps + last}


def chunk(text):
    return f"{len(text):x}\r\n{text}\r\n"


def event(kind, **data):
    return ["send", chunk(f"event: {kind}\ndata: {json.dumps({'type': kind, **data})}\n\n")]


def asked(model, **more):
    return {"model": model, "max_tokens": 16, "messages": MESSAGES, **more}


def models(client, args):
    ids = [model.id for model in client.models.list()]
    check(args.model in ids, f"{args.model!r} is not among {ids}")
    return {"models": ids}


def message(client, args):
    script = whole("200 OK", {**MESSAGE, "model": args.model})
    answer = client.messages.create(**asked(args.model), extra_body=script)
    check(answer.content[0].text == "".join(PIECES), f"the text is {answer.content}")
    check((answer.usage.input_tokens, answer.usage.output_tokens) == (7, 3), f"the usage is {answer.usage}")
    counted = client.messages.count_tokens(
        model=args.model, messages=MESSAGES, extra_body=whole("200 OK", {"input_tokens": 7})
    )
    check(counted.input_tokens == 7, f"counted {counted}")
    return {"text": answer.content[0].text}


def stream(client, args):
    end = {"delta": {"stop_reason": "end_turn", "stop_sequence": None}, "usage": {"output_tokens": 3}}
    last = [event("content_block_stop", index=0), event("message_delta", **end), event("message_stop")]
    script = events(args.model, last + [["send", "0\r\n\r\n"]])
    with client.messages.stream(**asked(args.model), extra_body=script) as pieces:
        seen = list(pieces.text_stream)
        final = pieces.get_final_message()
    check(seen == PIECES, f"the pieces are {seen}")
    check(final.stop_reason == "end_turn", f"stop_reason is {final.stop_reason!r}")
    return {"pieces": seen}


def broken_stream(client, args):
    """The engine goes away: what was said is there, and then the package's own error."""
    script, seen = events(args.model, [["sleep", 0.2], ["close"]]), []
    try:
        with client.messages.stream(**asked(args.model), extra_body=script) as pieces:
            seen.extend(pieces.text_stream)
    except anthropic.APIStatusError as error:
        check(error.body["error"]["code"] == "stream_broken", f"the body is {error.body}")
        check(error.type == "api_error", f"the type is {error.type!r}")
        check(seen == PIECES, f"the pieces are {seen}")
        return {"broken": error.body["request_id"]}
    raise Wrong("a broken stream looks whole")


def not_found(client, args):
    ways = {
        "message": lambda: client.messages.create(**asked(args.unknown)),
        "stream": lambda: client.messages.create(**asked(args.unknown), stream=True),
        "count": lambda: client.messages.count_tokens(model=args.unknown, messages=MESSAGES),
    }
    for way, ask in ways.items():
        try:
            ask()
        except anthropic.NotFoundError as error:
            check(error.type == "not_found_error", f"{way}: the type is {error.type!r}")
            check(args.unknown in error.api_message, f"{way}: the message does not name the model: {error.message}")
            check(error.body["error"]["code"] == "model_not_found", f"{way}: the body is {error.body}")
        else:
            raise Wrong(f"{way}: {args.unknown!r} was answered")
    return {"not_found": sorted(ways)}


def refused(client, args):
    """What the engine itself refuses is the engine's; what its node says of an engine that is gone is the service's."""
    try:
        client.messages.create(**asked(args.model), extra_body=whole("429 Too Many Requests", REFUSAL))
    except anthropic.RateLimitError as error:
        check(error.body == REFUSAL, f"the body is {error.body}")
    else:
        raise Wrong("a refusal was taken for an answer")
    try:
        client.messages.create(**asked(args.model), extra_body={"script": [["close"]]})
    except anthropic.InternalServerError as error:
        check((error.status_code, error.type) == (502, "api_error"), f"{error.status_code}, {error.type!r}")
        return {"broke_off": error.body["error"]["code"]}
    raise Wrong("an engine that broke off was taken for one that answered")


def everything(args):
    seen = {}
    # With retries off, so that nothing that failed is hidden.
    with anthropic.Anthropic(base_url=args.base_url, api_key=API_KEY, max_retries=0) as client:
        for look in (models, message, stream, broken_stream, not_found, refused):
            seen |= look(client, args)
    return seen


def main():
    arguments = parser(__doc__, "http://127.0.0.1:8080: this package adds the /v1 itself")
    return run("anthropic", arguments, everything, [anthropic.AnthropicError])


if __name__ == "__main__":
    sys.exit(main())
