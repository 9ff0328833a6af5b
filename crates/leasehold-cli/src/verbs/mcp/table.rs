//! The tools: one table. To add one, write its function and put it here.

use super::tools::{Argument, Effect, Given, Tool};
use super::{files, leases, schemas, verbs};

const fn needed(name: &'static str, kind: &'static str, meaning: &'static str) -> Argument {
    Argument { name, kind, meaning, given: Given::Always }
}

const fn optional(name: &'static str, kind: &'static str, meaning: &'static str) -> Argument {
    Argument { name, kind, meaning, given: Given::Maybe }
}

const NAME: Argument = needed("lease", "string", "Name of the lease, such as daily-publish");
const HELD: Argument = Argument {
    name: "lease",
    kind: "string",
    meaning: "Name of a lease that was acquired on this connection",
    given: Given::MaybeInSession,
};
const TOKEN: Argument = Argument {
    name: "token",
    kind: "string",
    meaning: "The whole token, as lease_acquire, lease_hand_off or queue_claim answered it",
    given: Given::AlwaysWithoutSession,
};
const QUEUE: Argument = needed("queue", "string", "The queue, or spool:PATH for a folder");
const MARKER: Argument = optional("marker", "string", "How far the work has come, in a few words");
const TTL: Argument = optional("ttl", "string", "How long it lasts without renewal, such as 90s or 10m (1s to 24h)");

/// The tool of this name; none if there is no such tool.
pub fn find(name: &str) -> Option<&'static Tool> {
    ALL.iter().find(|tool| tool.name == name)
}

pub const ALL: &[Tool] = &[
    Tool {
        name: "lease_acquire",
        description: "Take a lease, so that nobody else does the same work. Answers `granted` with a token and an epoch, the \
                      fencing number: each grant has a larger one, and a place that has seen a larger one refuses writes \
                      under a smaller. If an earlier holder left a checkpoint, carry on from there. Answers `held` if \
                      somebody else has it: that is no error; do not do this work, take up something else, or ask again \
                      with `wait`.",
        keeping: Some((
            "It is renewed in the background until lease_release or the end of this connection, which releases it.",
            "It is NOT renewed in the background, nor released when this server ends: keep the token, call lease_renew with \
             it at least every third of the TTL, and lease_release when done. Otherwise it runs out after its TTL, and \
             somebody else may have it.",
        )),
        arguments: &[
            NAME,
            TTL,
            optional("label", "string", "What you call yourself"),
            optional("wait", "string", "Wait this long if it is held, such as 30s (at most 90s)"),
        ],
        outcomes: schemas::acquired,
        effect: Effect::Own,
        call: |call| Box::pin(leases::acquire(call)),
    },
    Tool {
        name: "lease_renew",
        description: "Confirm that a lease or a claimed item is still yours, and keep it for another TTL. The epoch stays the \
                      same. A failure of kind `lost` means that somebody else may have it: stop the work, write nothing \
                      more, and report it. If `drain` is set, an operator asks you to finish by then.",
        keeping: Some((
            "Leases acquired on this connection are renewed by themselves; this says whether they still are.",
            "Only this renews: nothing is renewed in the background.",
        )),
        arguments: &[HELD, TOKEN],
        outcomes: schemas::renewed,
        effect: Effect::Own,
        call: |call| Box::pin(leases::renew(call)),
    },
    Tool {
        name: "lease_release",
        description: "Give a lease back when the work is done, so that others need not wait. Releasing twice answers \
                      `already_released`, which is no error. A failure of kind `lost` means that it was taken over before: \
                      report that, for part of the work may have been done by two.",
        keeping: None,
        arguments: &[HELD, TOKEN, optional("failed", "boolean", "Record that the work failed")],
        outcomes: schemas::released,
        effect: Effect::Own,
        call: |call| Box::pin(leases::release(call)),
    },
    Tool {
        name: "lease_list",
        description: "List leases: who holds which, since when and until when. Changes nothing.",
        keeping: None,
        arguments: &[
            optional("pattern", "string", "Only names that begin with this, or match it if it has a `*` or `?`"),
            optional("held", "boolean", "Only leases that are held now"),
            optional("all", "boolean", "Also leases that have been free for more than a day"),
            optional("limit", "integer", "How many at most (100 unless given)"),
        ],
        outcomes: schemas::listed,
        effect: Effect::Nothing,
        call: |call| Box::pin(leases::list(call)),
    },
    Tool {
        name: "lease_show",
        description: "Show one lease: state, epoch, holder, deadline, the last progress and checkpoint, and why it changed \
                      hands. Changes nothing, and promises nothing: only lease_acquire takes it.",
        keeping: None,
        arguments: &[NAME],
        outcomes: schemas::shown,
        effect: Effect::Nothing,
        call: |call| Box::pin(leases::show(call)),
    },
    Tool {
        name: "lease_progress",
        description: "Say how far the work under a lease or a claimed item has come, for people who watch. It does not renew. \
                      Kind `lost` or `fenced`: somebody else has taken over, stop the work.",
        keeping: None,
        arguments: &[needed("marker", "string", "How far the work has come, in a few words"), HELD, TOKEN],
        outcomes: schemas::noted,
        effect: Effect::Own,
        call: |call| Box::pin(leases::progress(call)),
    },
    Tool {
        name: "lease_checkpoint",
        description: "Leave what whoever comes after you needs to carry on: the next holder of the lease, or the next attempt \
                      at the item, is given it. At most 4096 bytes; the last one counts. Kind `lost` or `fenced`: somebody \
                      else has taken over, and has an earlier checkpoint; stop the work.",
        keeping: None,
        arguments: &[needed("checkpoint", "string", "Anything, such as JSON or a path"), MARKER, HELD, TOKEN],
        outcomes: schemas::noted,
        effect: Effect::Own,
        call: |call| Box::pin(leases::progress(call)),
    },
    Tool {
        name: "lease_hand_off",
        description: "Give a lease to somebody else, whoever has it now: for supervisors that reassign work. The epoch goes up, \
                      so that the former holder is stopped and its later writes are refused. Answers the token for the new \
                      holder; pass it on to them. Kind `fenced`: the lease is not at `if_epoch` any more; look again with \
                      lease_show before you decide.",
        keeping: None,
        arguments: &[
            NAME,
            needed("to", "string", "What the new holder is called"),
            needed("why", "string", "Why; it is kept in the history, and the former holder is told"),
            optional("ttl", "string", "How long the new holder has before it must renew, such as 10m"),
            optional("by", "string", "Who you are"),
            optional("if_epoch", "integer", "Only if the epoch is still this one, as lease_show answered it"),
        ],
        outcomes: schemas::handed_off,
        effect: Effect::Others,
        call: |call| Box::pin(verbs::HAND_OFF.call(call)),
    },
    Tool {
        name: "queue_add",
        description: "Add an item of work to a queue, for any worker. With a `key` it is added once, however often you ask.",
        keeping: None,
        arguments: &[
            QUEUE,
            needed("payload", "string", "What the worker gets"),
            optional("key", "string", "Add it only if there is no item with this key"),
            optional("priority", "integer", "0 to 9, the highest first"),
            optional("delay", "string", "Not before this long from now, such as 10m"),
            optional("attempts", "integer", "How often it is tried before it is given up (5 unless given)"),
        ],
        outcomes: schemas::added,
        effect: Effect::Own,
        call: |call| Box::pin(verbs::QUEUE_ADD.call(call)),
    },
    Tool {
        name: "queue_claim",
        description: "Claim the next item of a queue: its payload, what an earlier attempt left as a checkpoint, and a token \
                      with an epoch. Nobody else gets it within the TTL. End it with queue_complete or queue_fail; if it \
                      takes longer, call lease_renew with the token, for it is not renewed by itself. Answers `none` if \
                      there is nothing to claim: that is no error.",
        keeping: Some((
            "It goes back to the queue untried when this connection ends.",
            "It goes back to the queue when the TTL is over, not when this server ends.",
        )),
        arguments: &[
            QUEUE,
            TTL,
            optional("label", "string", "What you call yourself"),
            optional("wait", "string", "Wait this long for an item, such as 30s (at most 90s)"),
        ],
        outcomes: schemas::claimed,
        effect: Effect::Own,
        call: |call| Box::pin(verbs::QUEUE_CLAIM.call(call)),
    },
    Tool {
        name: "queue_complete",
        description: "Complete an item that you claimed, by its token. Kind `fenced` or `lost`: somebody else has the item now, \
                      and your completion does not count; do not retry.",
        keeping: None,
        arguments: &[QUEUE, optional("result", "string", "What the work came to (at most 16 KiB)"), HELD, TOKEN],
        outcomes: schemas::ended,
        effect: Effect::Own,
        call: |call| Box::pin(verbs::QUEUE_COMPLETE.call(call)),
    },
    Tool {
        name: "queue_fail",
        description: "Give up an attempt at an item that you claimed: it is tried again later, or set aside as a dead letter \
                      when its attempts are used up. Kind `fenced` or `lost`: somebody else has the item now.",
        keeping: None,
        arguments: &[
            QUEUE,
            needed("why", "string", "What went wrong"),
            optional("retry_in", "string", "Try again after this long, such as 5m"),
            optional("for_good", "boolean", "Set it aside at once"),
            HELD,
            TOKEN,
        ],
        outcomes: schemas::ended,
        effect: Effect::Own,
        call: |call| Box::pin(verbs::QUEUE_FAIL.call(call)),
    },
    Tool {
        name: "fenced_write",
        description: "Write a file, unless a newer holder of the lease has been there. Atomic: readers see the old file or the \
                      new one. Kind `fenced`: your epoch is no longer the newest and nothing was written; stop the work.",
        keeping: None,
        arguments: &[
            needed("file", "string", "Path below the server's root folder"),
            needed("content", "string", "What the file will have in it"),
            HELD,
            TOKEN,
            optional("once", "boolean", "Admit one write per epoch"),
        ],
        outcomes: schemas::written,
        effect: Effect::Others,
        call: |call| Box::pin(files::fenced_write(call)),
    },
    Tool {
        name: "fenced_publish",
        description: "Publish a copy of a whole folder in one step, unless a newer holder of the lease has been there: readers of \
                      `target` see the old files or the new ones, never a mixture. Kind `fenced`: your epoch is no longer \
                      the newest and nothing was published; stop the work.",
        keeping: None,
        arguments: &[
            needed("folder", "string", "What to publish: a path below the server's root folder"),
            needed("target", "string", "What readers see: a path below the server's root folder"),
            HELD,
            TOKEN,
        ],
        outcomes: schemas::guarded,
        effect: Effect::Others,
        call: |call| Box::pin(verbs::PUBLISH.call(call)),
    },
    Tool {
        name: "fenced_push",
        description: "Push git branches of the repository in the server's root folder, unless a newer holder of the lease has \
                      pushed to that remote. Kind `fenced`: your epoch is no longer the newest and nothing was pushed; stop \
                      the work.",
        keeping: None,
        arguments: &[
            needed("remote", "string", "The remote, such as origin"),
            optional("refspecs", "array", "What to push, such as main (the current branch unless given)"),
            optional("rebase", "boolean", "When others have pushed meanwhile, rebase onto theirs and try again"),
            HELD,
            TOKEN,
        ],
        outcomes: schemas::guarded,
        effect: Effect::Others,
        call: |call| Box::pin(verbs::PUSH.call(call)),
    },
];
