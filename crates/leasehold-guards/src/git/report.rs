//! What `git push --porcelain` answered, and what that means for the fence.
//!
//! Promise: *landed* only if the remote reported so for the fence itself. A missing answer is *unknown*, never a
//! refusal. Non-promise: the reason of a refusal is in the remote's own words.

/// One ref's line.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Line {
    flag: char,
    to: String,
    summary: String,
}

/// What became of a push.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The remote applied all of it.
    Landed,
    /// Nothing was applied: the fence is not where we thought, or somebody was quicker. Read it again.
    Moved,
    /// Nothing was applied: these refs have commits that ours do not.
    Behind(Vec<String>),
    /// Nothing was applied: the remote, or git for it, refuses this ref, for this reason.
    Refused { name: String, reason: String },
    /// The fence was refused, but these refs were moved: the remote is not atomic.
    Torn(Vec<String>),
    /// No answer: it may or may not have been applied.
    Unknown,
}

/// Judges the lines that git printed.
pub(crate) fn judge(stdout: &str, succeeded: bool, fence: &str) -> Verdict {
    let lines: Vec<Line> = stdout.lines().filter_map(parse).collect();
    let Some(own) = lines.iter().find(|line| line.to == fence) else { return Verdict::Unknown };
    if own.flag != '!' {
        // Of an atomic push all refs have the same fate. `=` would mean that the fence was not sent, hence not compared.
        let all = lines.iter().all(|line| line.flag != '!');
        return if succeeded && all && own.flag != '=' { Verdict::Landed } else { Verdict::Unknown };
    }
    let moved = lines.iter().filter(|line| !matches!(line.flag, '!' | '='));
    let moved: Vec<String> = moved.map(|line| line.to.clone()).collect();
    if !moved.is_empty() {
        return Verdict::Torn(moved);
    }
    if lines.iter().any(|line| line.flag == '!' && is_lost(&line.summary)) {
        return Verdict::Unknown;
    }
    let rejected = || lines.iter().filter(|line| line.flag == '!');
    if own.summary.contains("(stale info)") || rejected().any(|line| is_race(&line.summary)) {
        return Verdict::Moved;
    }
    let behind: Vec<String> = rejected().filter(|line| is_behind(&line.summary)).map(|line| line.to.clone()).collect();
    if !behind.is_empty() {
        return Verdict::Behind(behind);
    }
    // The others failed only because one did.
    let is_cause = |line: &&Line| !line.summary.contains("(atomic push fail");
    let cause = rejected().find(is_cause).unwrap_or(own);
    let reason = cause.summary.rsplit_once('(').map_or(cause.summary.as_str(), |(_, reason)| reason);
    Verdict::Refused { name: cause.to.clone(), reason: reason.trim_end_matches(')').to_owned() }
}

fn parse(line: &str) -> Option<Line> {
    let mut fields = line.splitn(3, '\t');
    let mut flag = fields.next()?.chars();
    let (flag, None) = (flag.next()?, flag.next()) else { return None };
    let (_, to) = fields.next()?.rsplit_once(':')?;
    Some(Line { flag, to: to.to_owned(), summary: fields.next()?.to_owned() })
}

/// The remote took it, but did not say what became of it.
fn is_lost(summary: &str) -> bool {
    summary.contains("[remote failure]") || summary.contains("(remote failed to report status)")
}

/// The remote's locks and comparisons: somebody moved a ref between its advertisement and its update.
fn is_race(summary: &str) -> bool {
    const WORDS: [&str; 8] = [
        "failed to update ref",
        "failed to lock",
        "cannot lock ref",
        "but expected",
        "incorrect old value",
        "reference already exists",
        "unable to resolve reference",
        "atomic transaction failed",
    ];
    summary.starts_with("[remote rejected]") && WORDS.iter().any(|word| summary.contains(word))
}

fn is_behind(summary: &str) -> bool {
    const WORDS: [&str; 4] = ["(non-fast-forward)", "(fetch first)", "(already exists)", "(needs force)"];
    WORDS.iter().any(|word| summary.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(lines: &[&str]) -> Verdict {
        let text = format!("To x\n{}\nDone\n", lines.join("\n"));
        judge(&text, lines.iter().all(|line| !line.starts_with('!')), "refs/fence/job")
    }

    #[test]
    fn only_the_remotes_word_on_the_fence_counts() {
        let landed = "+\tabc:refs/fence/job\t1...2 (forced update)";
        assert_eq!(verdict(&[landed, " \tx:refs/heads/main\t1..2"]), Verdict::Landed);
        assert_eq!(verdict(&["*\tabc:refs/fence/job\t[new reference]"]), Verdict::Landed);
        assert_eq!(verdict(&["*\tx:refs/heads/main\t[new branch]"]), Verdict::Unknown);
        assert_eq!(verdict(&["=\tabc:refs/fence/job\t[up to date]"]), Verdict::Unknown);
        assert_eq!(verdict(&[landed, "!\tx:refs/heads/main\t[remote rejected] (x)"]), Verdict::Unknown);
        assert_eq!(judge("", false, "refs/fence/job"), Verdict::Unknown);
        assert_eq!(judge(&format!("{landed}\n"), false, "refs/fence/job"), Verdict::Unknown);
    }

    #[test]
    fn a_moved_fence_is_distinguished_from_a_branch_that_is_behind() {
        let atomic = "!\tabc:refs/fence/job\t[rejected] (atomic push failed)";
        let stale = "!\tabc:refs/fence/job\t[rejected] (stale info)";
        let behind = "!\tx:refs/heads/main\t[rejected] (non-fast-forward)";
        assert_eq!(verdict(&[atomic, behind]), Verdict::Behind(vec!["refs/heads/main".into()]));
        assert_eq!(verdict(&[stale, behind]), Verdict::Moved);
        let raced =
            "!\tabc:refs/fence/job\t[remote rejected] (cannot lock ref 'refs/fence/job': is at 1 but expected 2)";
        assert_eq!(verdict(&[raced]), Verdict::Moved);
        let hooked = "!\tabc:refs/fence/job\t[remote rejected] (pre-receive hook declined)";
        let refused = |name: &str, reason: &str| Verdict::Refused { name: name.into(), reason: reason.into() };
        assert_eq!(verdict(&[hooked]), refused("refs/fence/job", "pre-receive hook declined"));
        let protected = "!\tx:refs/heads/main\t[remote rejected] (protected branch hook declined)";
        let other = "!\tabc:refs/fence/job\t[remote rejected] (atomic push failure)";
        assert_eq!(verdict(&[other, protected]), refused("refs/heads/main", "protected branch hook declined"));
        let hidden = "!\tabc:refs/fence/job\t[remote rejected] (deny updating a hidden ref)";
        let torn = Verdict::Torn(vec!["refs/heads/main".into()]);
        assert_eq!(verdict(&[hidden, "*\tx:refs/heads/main\t[new branch]"]), torn);
        let silent = "!\tabc:refs/fence/job\t[remote failure] (remote failed to report status)";
        assert_eq!(verdict(&[silent]), Verdict::Unknown);
    }
}
