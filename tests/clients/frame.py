"""What the clients have in common: how they are called, and how they say what they saw."""

import argparse
import json
import sys

# The service under test holds no credentials; the packages insist on one.
API_KEY = "sk-none"


class Wrong(Exception):
    """The service answered, and not as it should."""


def check(condition, message):
    if not condition:
        raise Wrong(message)


def parser(doc, base_url="http://127.0.0.1:8080/v1"):
    """The arguments of every client."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base_url", help=f"for example {base_url}")
    parser.add_argument("--model", required=True)
    return parser


def run(name, parser, everything, errors):
    """Does everything and prints what was seen; the exit code. `errors` are the client's own."""
    parser.add_argument("--unknown", default="no/such", help="a model that nobody has (default: %(default)s)")
    args = parser.parse_args()
    try:
        print(json.dumps(everything(args)))
    except (Wrong, *errors) as error:
        print(f"{name} at {args.base_url}: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0
