"""What a user of `langchain-openai` sees of a service: models, chat, streams, embeddings, errors, and leaving early.

Prints one line of JSON with what was seen and exits with 0, or says on stderr what was wrong and exits with 1.
"""

import sys

import openai
from frame import API_KEY, Wrong, check, parser, run
from langchain_openai import ChatOpenAI, OpenAIEmbeddings

PROMPT = [("system", "You are brief."), ("human", "Say something, please.")]


def chat_model(args, model, **options):
    # With retries off, so that nothing that failed is hidden.
    return ChatOpenAI(base_url=args.base_url, api_key=API_KEY, model=model, max_retries=0, temperature=0, **options)


def models(args):
    """The package lists none itself; whoever wants to know asks the client that it holds."""
    ids = [model.id for model in chat_model(args, args.model).root_client.models.list()]
    check(args.model in ids, f"{args.model!r} is not among {ids}")
    return {"models": ids}


def chat(args):
    answer = chat_model(args, args.model, max_tokens=16).invoke(PROMPT)
    check(answer.content, "an empty message")
    usage = answer.usage_metadata
    check(usage and usage["output_tokens"] > 0, f"the usage is {usage}")
    check(answer.response_metadata["finish_reason"] in ("stop", "length"), f"{answer.response_metadata}")
    return {"text": answer.content}


def stream(args, whole):
    chunks = list(chat_model(args, args.model, max_tokens=16, stream_usage=True).stream(PROMPT))
    pieces = [chunk.content for chunk in chunks if chunk.content]
    check(len(pieces) > 1, f"{len(pieces)} pieces of text: that is no stream")
    check("".join(pieces) == whole, f"a stream says {''.join(pieces)!r} where one answer says {whole!r}")
    check(any(chunk.usage_metadata for chunk in chunks), "no usage in the stream")
    return {"pieces": len(pieces)}


def embeddings(args):
    # Otherwise it looks for the tokenizer of a model of OpenAI's and sends the text as its tokens.
    client = OpenAIEmbeddings(
        base_url=args.base_url, api_key=API_KEY, model=args.model, max_retries=0, check_embedding_ctx_length=False
    )
    two = client.embed_documents(["one", "two, and a little longer"])
    check(len(two) == 2 and len(two[0]) == len(two[1]) > 0, "not one embedding for each text")
    check(two[0] != two[1], "two texts have one embedding")
    return {"dimensions": len(two[0])}


def not_found(args):
    ways = {
        "chat": lambda: chat_model(args, args.unknown).invoke(PROMPT),
        "stream": lambda: list(chat_model(args, args.unknown).stream(PROMPT)),
    }
    for way, ask in ways.items():
        try:
            ask()
        except openai.NotFoundError as error:
            check(error.code == "model_not_found", f"{way}: code is {error.code!r}")
            check(args.unknown in error.message, f"{way}: the message does not name the model: {error.message}")
        else:
            raise Wrong(f"{way}: {args.unknown!r} was answered")
    return {"not_found": sorted(ways)}


def leave(args):
    """Leaves a long stream after a few pieces."""
    long = chat_model(args, args.model, max_tokens=5000, extra_body={"ignore_eos": True})
    pieces = long.stream(PROMPT)
    seen = sum(bool(next(pieces).content) for _ in range(4))
    pieces.close()
    check(seen > 1, f"{seen} pieces of text in four events")
    return {"left_after": seen}


def everything(args):
    seen = {**models(args), **chat(args)}
    return seen | {**stream(args, seen["text"]), **embeddings(args), **not_found(args), **leave(args)}


def main():
    return run("langchain", parser(__doc__), everything, [openai.OpenAIError])


if __name__ == "__main__":
    sys.exit(main())
