"""What a user of LiteLLM sees of a service as the provider `openai/`: models, chat, streams, embeddings, errors, and
leaving early.

Prints one line of JSON with what was seen and exits with 0, or says on stderr what was wrong and exits with 1.
"""

import os
import sys

# Otherwise it asks the network for the prices of models when it is imported.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm  # noqa: E402
import openai  # noqa: E402
from frame import API_KEY, Wrong, check, parser, run  # noqa: E402

MESSAGES = [{"role": "user", "content": "Say something, please."}]


def service(args, model):
    # With retries off, so that nothing that failed is hidden.
    return {"model": f"openai/{model}", "api_base": args.base_url, "api_key": API_KEY, "max_retries": 0}


def models(args):
    ids = litellm.get_valid_models(
        check_provider_endpoint=True, custom_llm_provider="openai", api_base=args.base_url, api_key=API_KEY
    )
    check(any(found in (args.model, f"openai/{args.model}") for found in ids), f"{args.model!r} is not among {ids}")
    return {"models": ids}


def chat(args):
    answer = litellm.completion(**service(args, args.model), messages=MESSAGES, temperature=0, max_tokens=16)
    choice = answer.choices[0]
    check(choice.message.content, "an empty message")
    check(choice.finish_reason in ("stop", "length"), f"finish_reason is {choice.finish_reason!r}")
    usage = answer.usage
    check(usage.total_tokens == usage.prompt_tokens + usage.completion_tokens, f"the usage does not add up: {usage}")
    return {"text": choice.message.content}


def stream(args, whole):
    options = {"include_usage": True}
    events = litellm.completion(
        **service(args, args.model), messages=MESSAGES, temperature=0, max_tokens=16, stream=True, stream_options=options
    )
    events = list(events)
    pieces = [event.choices[0].delta.content for event in events if event.choices and event.choices[0].delta.content]
    check(len(pieces) > 1, f"{len(pieces)} pieces of text: that is no stream")
    check("".join(pieces) == whole, f"a stream says {''.join(pieces)!r} where one answer says {whole!r}")
    check(any(getattr(event, "usage", None) for event in events), "no usage in the stream")
    return {"pieces": len(pieces)}


def embeddings(args):
    answer = litellm.embedding(**service(args, args.model), input=["one", "two, and a little longer"])
    one, two = (item["embedding"] for item in answer.data)
    check(len(one) == len(two) > 0, "not one embedding for each text")
    check(one != two, "two texts have one embedding")
    return {"dimensions": len(one)}


def not_found(args):
    for streams in (False, True):
        try:
            answer = litellm.completion(**service(args, args.unknown), messages=MESSAGES, stream=streams)
            list(answer)
        except litellm.NotFoundError as error:
            check(error.status_code == 404, f"status is {error.status_code}")
            check(args.unknown in str(error), f"the message does not name the model: {error}")
        else:
            raise Wrong(f"{args.unknown!r} was answered")
    return {"not_found": ["chat", "stream"]}


def leave(args):
    """Leaves a long stream after a few events, as a proxy does whose own client has gone."""
    events = litellm.completion(
        **service(args, args.model), messages=MESSAGES, max_tokens=5000, stream=True, extra_body={"ignore_eos": True}
    )
    seen = sum(bool(next(events).choices[0].delta.content) for _ in range(4))
    # What it wraps is the official client's stream; it has no word of its own for closing.
    events.completion_stream.close()
    check(seen > 1, f"{seen} pieces of text in four events")
    return {"left_after": seen}


def everything(args):
    seen = {**models(args), **chat(args)}
    return seen | {**stream(args, seen["text"]), **embeddings(args), **not_found(args), **leave(args)}


def main():
    return run("litellm", parser(__doc__), everything, [openai.OpenAIError])


if __name__ == "__main__":
    sys.exit(main())
