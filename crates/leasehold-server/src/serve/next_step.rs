//! What the client of a refused request does next, by the kind of the problem.
//!
//! Promise: every kind that this server answers has one row here, and docs/api.md has the same table: a test compares them.
//! Non-promise: what the refusal is about is not looked at; the detail says it in words.

/// Each kind, and what to do.
const STEPS: &[(&str, &str)] = &[
    // Nothing that was begun under the grant counts any more.
    ("lost", "stop"),
    ("fenced", "stop"),
    // Nothing was done, and later it may be.
    ("unavailable", "retry"),
    ("contended", "retry"),
    ("overloaded", "retry"),
    ("too_many_requests", "retry"),
    ("ending", "retry"),
    ("issuer_unavailable", "retry"),
    ("too_slow", "retry"),
    // Somebody has it, or keeps others out, for now.
    ("held", "wait"),
    ("paused", "wait"),
    ("draining", "wait"),
    ("too_soon", "wait"),
    ("requested", "wait"),
    // Read what is there, and decide again.
    ("unknown", "look"),
    ("no_longer_known", "look"),
    ("changed", "look"),
    ("already_run", "look"),
    ("interrupted", "look"),
    ("not_held", "look"),
    ("not_paused", "look"),
    ("forgotten", "look"),
    ("refused", "look"),
    ("no_scheduler", "look"),
    ("too_many", "look"),
    ("lineage_fixed", "look"),
    // The same request will not do, whoever sends it.
    ("invalid", "change_request"),
    ("not_found", "change_request"),
    ("method_not_allowed", "change_request"),
    ("key_reused", "change_request"),
    ("too_large", "change_request"),
    ("unsupported", "change_request"),
    // It will not do with this key or token.
    ("key_missing", "change_key"),
    ("key_malformed", "change_key"),
    ("key_unknown", "change_key"),
    ("key_expired", "change_key"),
    ("key_revoked", "change_key"),
    ("session_ended", "change_key"),
    ("not_allowed", "change_key"),
    ("token_malformed", "change_key"),
    ("token_untrusted", "change_key"),
    ("token_expired", "change_key"),
    ("token_early", "change_key"),
    ("no_rule", "change_key"),
    ("moved", "change_store"),
    ("regressed", "call_a_person"),
    ("corrupt", "call_a_person"),
    ("exhausted", "call_a_person"),
    ("internal", "call_a_person"),
];

/// What to do after a problem of this kind.
pub(super) fn of(kind: &str) -> &'static str {
    let step = STEPS.iter().find(|(known, _)| *known == kind);
    debug_assert!(step.is_some(), "`{kind}` has no row");
    step.map_or("call_a_person", |(_, step)| step)
}

/// Each word for what to do, once.
pub(crate) fn all() -> Vec<&'static str> {
    let mut words: Vec<_> = STEPS.iter().map(|(_, step)| *step).collect();
    words.dedup();
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_core::Kind;
    use std::collections::BTreeMap;

    const PAGE: &str = include_str!("../../../../docs/api.md");

    /// The words of one cell that are set as code.
    fn words(cell: &str) -> impl Iterator<Item = &str> {
        cell.split('`').skip(1).step_by(2)
    }

    #[test]
    fn the_page_has_every_kind_and_what_to_do_and_no_other() {
        let section = PAGE.split("\n### Problems\n").nth(1).unwrap().split("\n### ").next().unwrap();
        let table = section.split("| status | kind | next step |").nth(1).expect("the table");
        let mut told = BTreeMap::new();
        for row in table.lines().skip(2).take_while(|line| line.starts_with('|')) {
            let cells: Vec<&str> = row.split('|').map(str::trim).collect();
            let steps: Vec<&str> = words(cells[3]).collect();
            assert_eq!(steps.len(), 1, "one step for all kinds of a row: {row}");
            words(cells[2]).for_each(|kind| assert!(told.insert(kind, steps[0]).is_none(), "`{kind}` comes twice"));
        }
        // Forms on the page for people have it, and nothing else does.
        let ours: BTreeMap<_, _> = STEPS.iter().copied().filter(|(kind, _)| *kind != "session_ended").collect();
        assert_eq!(told, ours);
        for step in all() {
            assert!(section.contains(&format!("| `{step}` |")), "the page says what `{step}` means");
        }
    }

    #[test]
    fn every_kind_of_error_has_a_step() {
        for kind in Kind::ALL {
            let kind = if kind == Kind::Indeterminate { "unknown" } else { kind.as_str() };
            assert!(STEPS.iter().any(|(known, _)| *known == kind), "{kind}");
        }
        let mut kinds: Vec<_> = STEPS.iter().map(|(kind, _)| *kind).collect();
        kinds.sort_unstable();
        let all = kinds.len();
        kinds.dedup();
        assert_eq!(kinds.len(), all, "each kind has one row");
    }
}
