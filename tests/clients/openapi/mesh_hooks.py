"""What schemathesis cannot know of the mesh that it tries: what its one node meets, and that cursors are not made up."""

import os

import schemathesis

# What a request may ask for so that the node of the test is given it.
MET = {
    "X-Otela-Identity-Group": "model=Qwen/Qwen3-8B",
    "X-Otela-Require": "context>=1024,label.team=a",
    "X-Otela-Trusted-Providers": os.environ["TRUSTED_PROVIDER"],
}
# How a cursor begins: it is an array whose first element is a text, as base64.
CURSOR = "WyJ"


@schemathesis.hook
def before_call(context, case, kwargs):
    if case.meta is None or not case.meta.generation.mode.is_positive:
        return
    for name in list(case.headers or ()):
        if name in MET:
            case.headers[name] = MET[name]
    # Real ones come with the links from page to page.
    if case.query and not str(case.query.get("after", "")).startswith(CURSOR):
        case.query.pop("after", None)
