"""Leads requests that schemathesis makes to where something happens.

Of the requests that fit the description, three in four are about a few names that others are about too, with durations that are
some, and two of these have the token, epoch, id or count that an earlier answer gave. Those that must be refused stay as they
are.
"""

import itertools
import os

import schemathesis
from schemathesis.generation import GenerationMode

NAMES = itertools.cycle(["a", "a", "b"])
TURN = itertools.count()
DURATIONS = {
    "ttl": "2s",
    # Nobody waits for long: a run must end.
    "wait": "20ms",
    "within": "1s",
    "delay": "0s",
    "backoff": "1s",
    "retry_in": "0s",
    "older_than": "0s",
    "lasts": "1h",
    "overlap": "0s",
}
# The key that asks must not end itself: then everything else would be refused, and nothing tried.
OWN = os.environ.get("OPENAPI_OWN_KEY")
# What was seen last: by field, and by field of a name.
seen = {}


def about(case):
    parameters = case.path_parameters or {}
    return parameters.get("name") or parameters.get("queue")


@schemathesis.hook
def before_call(ctx, case, **kwargs):
    body = case.body if isinstance(case.body, dict) else {}
    if isinstance(body.get("wait"), str):
        body["wait"] = DURATIONS["wait"]
    if case.meta is None or case.meta.generation.mode != GenerationMode.POSITIVE:
        return
    turn = next(TURN) % 4
    if turn == 3:
        return
    for parameter in case.path_parameters or {}:
        if parameter == "namespace":
            case.path_parameters[parameter] = "team"
        elif parameter == "id":
            case.path_parameters[parameter] = seen.get("id", "k.a")
        else:
            case.path_parameters[parameter] = next(NAMES)
    if turn == 2:
        # The right name, and an epoch or a token that was never so.
        body = {field: value for field, value in body.items() if field in DURATIONS}
    if "allows" in body:
        case.body.update(allows=["read"], namespace="team", names=["a"])
    for field, value in body.items():
        if field in DURATIONS and value is not None:
            case.body[field] = DURATIONS[field]
        elif field in ("token", "epoch", "confirm"):
            case.body[field] = seen.get((field, about(case)), seen.get(field, value))
    for item in body.get("items") or []:
        for field in set(item) & set(DURATIONS):
            item[field] = DURATIONS[field]


@schemathesis.hook
def after_call(ctx, case, response):
    if response.status_code != 200 or "json" not in response.headers.get("content-type", [""])[0]:
        return
    answer = response.json()
    for found in [answer, *[item for items in answer.values() if isinstance(items, list) for item in items]]:
        if not isinstance(found, dict) or (OWN is not None and found.get("id") == OWN):
            continue
        for field in ("token", "epoch", "confirm", "id"):
            if isinstance(found.get(field), (str, int)):
                seen[field] = seen[(field, about(case))] = found[field]
