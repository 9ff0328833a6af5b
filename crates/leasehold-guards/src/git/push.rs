//! One fenced push: the fence and the branches move together, or nothing does.
//!
//! Promise: a push names the value that the fence must have, from the cache or read before. Only the remote's
//! comparison decides. If no answer comes, the refs tell. Either the fence points at our commit, or past it, and so do
//! the branches. Or the fence is moved, so that our push can never be applied. A git server syncs a ref before it
//! shows it, so what is seen is durable. Non-promise: then the branches are not pushed again; the caller decides that.

use super::Pushed;
use super::branches;
use super::cache::{Fence, Note};
use super::commit::{Adopted, FenceMessage, Oid};
use super::fence_ref::{self, CommitDraft};
use super::names::Refspec;
use super::program::{Answer, NOTHING_ELSE, plain};
use super::report::{Verdict, judge};
use super::site::Site;
use super::trace::Trace;
use crate::observe::git::{GitStep, reach};
use crate::succession::{self, Former, MAX_FORMER_BYTES};
use leasehold_core::guard::{self, HighWater, Policy};
use leasehold_core::observe::Observed;
use leasehold_core::{Error, Kind, Result, Token};
use leasehold_system::sync::Mutex;
use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

/// How often a push is tried while the fence moves. Each time, somebody of our own tenure has pushed.
const TRIES: u32 = 24;
/// The pause between two tries, times the number of tries so far.
const PAUSE: Duration = Duration::from_millis(15);

/// How git begins the reason why the remote could not store what was sent.
const UNPACK: &str = "remote unpack failed:";

/// Why a push was not applied.
#[derive(Debug)]
pub(super) enum Failure {
    /// These branches have commits that ours do not.
    Behind { error: Error, names: Vec<String> },
    /// Any other error: pushing again would not help.
    Final(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::Final(error)
    }
}

/// One token at one remote.
pub(super) struct FencedPush<'a> {
    pub(super) site: &'a Site,
    pub(super) resource: String,
    pub(super) fence: String,
    pub(super) token: &'a Token,
    pub(super) policy: Policy,
    pub(super) steps: &'a Observed<GitStep>,
    pub(super) note: Note,
    /// Used by the first push; later ones start another.
    pub(super) draft: Mutex<Option<CommitDraft>>,
}

/// What one `git push` led to, when it was not refused.
enum Outcome {
    Landed(String),
    Moved,
    Behind(Vec<String>),
}

impl<'a> FencedPush<'a> {
    /// Moves the fence without anything else, unless it is ours already.
    pub(super) async fn seal(&self) -> Result<HighWater> {
        let sealed = |found: Option<&Fence>| guard::seal(found.map(|fence| &fence.high), self.token);
        self.move_alone(|found| Ok((sealed(found).map_err(|why| why.into_error(&self.resource))?, None))).await
    }

    /// Gives the fence to another lease of its name, unless it has moved.
    pub(super) async fn adopt(&self, from: &HighWater, adopted: Adopted) -> Result<HighWater> {
        self.move_alone(|found| {
            let next = succession::adopt(&self.resource, found.map(|fence| &fence.high), from, self.token)?;
            let former = Fence::former(found).given(&self.resource, from, self.token, MAX_FORMER_BYTES)?;
            Ok((next, Some((adopted.clone(), former))))
        })
        .await
    }

    async fn move_alone(
        &self,
        decide: impl Fn(Option<&Fence>) -> Result<(HighWater, Option<(Adopted, Former)>)>,
    ) -> Result<HighWater> {
        for attempt in 0..TRIES {
            pause(attempt).await;
            let found = self.read().await?;
            let (next, given) = decide(found.as_ref())?;
            if found.as_ref().is_some_and(|fence| fence.high == next)
                || matches!(self.send(&[], found.as_ref(), next.clone(), given).await?, Outcome::Landed(_))
            {
                return Ok(next);
            }
        }
        Err(self.contended())
    }

    /// Pushes the fence and the branches.
    pub(super) async fn push(&self, refspecs: &[Refspec]) -> Result<Pushed, Failure> {
        let mut known = self.note.read();
        let mut is_fresh = false;
        for attempt in 0..TRIES {
            pause(attempt.saturating_sub(1)).await;
            if known.is_none() {
                known = self.read().await?;
                is_fresh = true;
            }
            let found = known.take();
            let high = found.as_ref().map(|fence| &fence.high);
            let next = match guard::admit(high, self.token, self.policy) {
                Ok(next) => next,
                // The cache may be about a remote that was replaced since. Only the remote itself refuses a token.
                Err(_) if !is_fresh => continue,
                Err(why) => return Err(why.into_error(&self.resource).into()),
            };
            if self.needs_a_seal_first(found.as_ref(), refspecs) {
                self.seal().await?;
                known = self.read().await?;
                is_fresh = true;
                continue;
            }
            match self.send(refspecs, found.as_ref(), next.clone(), None).await? {
                Outcome::Landed(said) => return Ok(Pushed { high: next, said }),
                Outcome::Moved => {}
                Outcome::Behind(names) => return Err(self.behind(names)),
            }
            is_fresh = false;
        }
        Err(self.contended().into())
    }

    /// Whether the fence has to be moved alone first. If there is none yet, the remote may refuse it, and git applies
    /// the rest of an atomic push if one of its refs is hidden from pushers. If it sorts after a branch, a remote that
    /// crashes may have moved the branch and not the fence. A sealed fence makes that harmless.
    fn needs_a_seal_first(&self, found: Option<&Fence>, refspecs: &[Refspec]) -> bool {
        let Some(fence) = found else { return true };
        fence.high.epoch != self.token.epoch && refspecs.iter().any(|refspec| refspec.sorts_before(&self.fence))
    }

    /// Sends one push. A refusal that is final is an error.
    async fn send(
        &self,
        refspecs: &[Refspec],
        found: Option<&Fence>,
        next: HighWater,
        adopted: Option<(Adopted, Former)>,
    ) -> Result<Outcome> {
        let (adopted, former) = match adopted {
            Some((adopted, former)) => (Some(adopted), former),
            None => (None, Fence::former(found)),
        };
        let expected = found.map(|fence| &fence.oid);
        let oid =
            self.make(FenceMessage::new(next.clone(), Fence::trail(found), former.clone()).adopted(adopted)).await?;
        let trace = Trace::new();
        let answer = self.run_push(&oid, expected, refspecs, &trace).await?;
        let stdout = String::from_utf8_lossy(&answer.stdout).into_owned();
        let verdict = match self.steps.reach(GitStep::Reply) {
            Ok(()) => judge(&stdout, answer.succeeded, &self.fence),
            Err(_) => Verdict::Unknown,
        };
        match verdict {
            Verdict::Landed => {
                self.write_down(oid, next, found, former);
                Ok(Outcome::Landed(told(&answer)))
            }
            // Git reports it like a lost race, but another try would fail too.
            Verdict::Moved if answer.said.contains("non-commit object") => {
                let why = format!("nothing was pushed: resource=`{}`: {}", self.resource, answer.complaint());
                Err(Error::new(Kind::Invalid, why))
            }
            Verdict::Moved => {
                self.note.forget();
                Ok(Outcome::Moved)
            }
            Verdict::Behind(names) => Ok(Outcome::Behind(names)),
            Verdict::Refused { name, reason } => self.refused(found, &name, &reason, &answer).await,
            Verdict::Torn(names) => Err(self.torn(&names)),
            Verdict::Unknown if !trace.shows_a_pack() => Err(self.not_sent(&answer).await),
            Verdict::Unknown => self.resolve(oid, found, next, &answer, refspecs).await,
        }
    }

    async fn run_push(&self, oid: &Oid, expected: Option<&Oid>, refspecs: &[Refspec], trace: &Trace) -> Result<Answer> {
        let fence = &self.fence;
        let expected = expected.map_or("", Oid::as_str);
        let mut words: Vec<OsString> = ["push", "--porcelain", "--atomic"].map(OsString::from).to_vec();
        words.push(format!("--force-with-lease={fence}:{expected}").into());
        words.extend(["--", self.site.remote.as_str()].map(OsString::from));
        words.push(format!("{}:{fence}", oid.as_str()).into());
        words.extend(refspecs.iter().map(|refspec| refspec.to_string().into()));
        self.reach(GitStep::Push)?;
        let mut command = self.site.git.command(words);
        if let Some(path) = trace.path() {
            command.env("GIT_TRACE", path);
        }
        self.site.git.finish(command).await
    }

    /// The remote gave no answer: the fence tells whether the push was applied.
    async fn resolve(
        &self,
        oid: Oid,
        found: Option<&Fence>,
        next: HighWater,
        answer: &Answer,
        refspecs: &[Refspec],
    ) -> Result<Outcome> {
        self.note.forget();
        let unknown = |why: &str| {
            let message = format!(
                "no answer: resource=`{}` may or may not have applied the push ({}), and {why}; read it back before \
                 anything else: git ls-remote {} {}",
                self.resource,
                answer.complaint(),
                self.site.shown(),
                self.fence
            );
            Error::new(Kind::Indeterminate, message)
        };
        for _ in 0..3 {
            let now = self.read().await.map_err(|e| unknown("the remote cannot be asked").with_source(e))?;
            let was = found.map(|fence| &fence.oid);
            match &now {
                // It is ours, or somebody moved it on from ours. If the remote crashed in the middle, only the fence
                // has moved.
                Some(fence) if fence.oid == oid || fence.after.contains(&oid) => {
                    let theirs = branches::first_missing(self.site, refspecs).await;
                    if let Some(name) = theirs.map_err(|e| unknown("the remote cannot be asked").with_source(e))? {
                        let why = format!(
                            "the fence has moved, but `{name}` is neither what was pushed nor built upon it: the remote broke \
                             off in between, or others have overwritten it since"
                        );
                        return Err(unknown(&why));
                    }
                    if fence.oid == oid {
                        self.write_down(oid, next, found, fence.former.clone());
                    }
                    return Ok(Outcome::Landed(told(answer)));
                }
                // Somebody else moved it on from where it was: our push cannot be applied any more.
                Some(fence) if Some(&fence.oid) != was && fence.passed(was) => return Ok(Outcome::Moved),
                Some(fence) if Some(&fence.oid) != was => return Err(unknown("the fence was moved many times since")),
                None if was.is_some() => return Err(unknown("the fence is gone")),
                // A seal can be sent again: at most one of the two is applied.
                _ if refspecs.is_empty() => return Ok(Outcome::Moved),
                // It may still be on its way. Once the fence has moved, it cannot be applied.
                _ => match self.shut_out_late_push(found).await {
                    Some(true) => {
                        // Where the fence sorts last, a crash in the middle leaves it behind.
                        let first: Vec<Refspec> =
                            refspecs.iter().filter(|refspec| refspec.sorts_before(&self.fence)).cloned().collect();
                        if !first.is_empty() && !matches!(branches::first_missing(self.site, &first).await, Ok(Some(_)))
                        {
                            return Err(unknown("the fence did not move, but the branches are as they were pushed"));
                        }
                        return Err(self.not_applied(answer));
                    }
                    Some(false) => {}
                    None => return Err(unknown("the remote does not answer any more")),
                },
            }
        }
        Err(unknown("the fence keeps moving"))
    }

    /// Moves the fence alone, so that a push that is still on its way fails. Whether it was moved; none if that is
    /// unknown too.
    async fn shut_out_late_push(&self, found: Option<&Fence>) -> Option<bool> {
        let next = guard::seal(found.map(|fence| &fence.high), self.token).ok()?;
        let expected = found.map(|fence| &fence.oid);
        let oid = self.make(FenceMessage::new(next.clone(), Fence::trail(found), Fence::former(found))).await.ok()?;
        let answer = self.run_push(&oid, expected, &[], &Trace::default()).await.ok()?;
        match judge(&String::from_utf8_lossy(&answer.stdout), answer.succeeded, &self.fence) {
            Verdict::Landed => {
                self.write_down(oid, next, found, Fence::former(found));
                Some(true)
            }
            Verdict::Moved => Some(false),
            _ => None,
        }
    }

    async fn refused(&self, found: Option<&Fence>, name: &str, reason: &str, answer: &Answer) -> Result<Outcome> {
        // A hook may refuse because somebody else was quicker.
        let now = self.read().await?;
        if now.as_ref().map(|fence| &fence.oid) != found.map(|fence| &fence.oid) {
            return Ok(Outcome::Moved);
        }
        let words: Vec<&str> =
            answer.said.lines().filter_map(|line| line.strip_prefix("remote:")).map(str::trim).collect();
        if is_unpack_failure(reason, &answer.said) {
            return Err(self.not_stored(answer, &words));
        }
        // JGit keeps refs in folders, and removes one that is empty while another push puts its ref there.
        let is_passing = reason.contains("No such file or directory");
        let advice = if is_passing {
            "; nothing was applied, try again"
        } else if name == self.fence && !reason.contains("hook declined") {
            "; if this remote does not take refs of that name, keep the fences elsewhere: --fence-namespace \
             refs/heads/00-fence or refs/tags/fence"
        } else {
            ""
        };
        let words = if words.is_empty() { String::new() } else { format!(": {}", plain(&words.join(" "))) };
        let message =
            format!("refused by the remote: resource=`{}` ref `{name}`: {reason}{words}{advice}", self.resource);
        Err(Error::new(if is_passing { Kind::Unavailable } else { Kind::Unsupported }, message))
    }

    /// The remote had no space, or no permission, to store the objects.
    fn not_stored(&self, answer: &Answer, words: &[&str]) -> Error {
        let reason = answer.said.lines().find_map(|line| line.split_once(UNPACK)).map(|(_, reason)| reason.trim());
        let said: Vec<&str> = reason.into_iter().chain(words.iter().copied()).filter(|word| !word.is_empty()).collect();
        let message = format!(
            "the remote could not store what was sent: resource=`{}`: {}; nothing was applied: check that you may write there, \
             and that its disk has space",
            self.resource,
            plain(&said.join(": "))
        );
        Error::new(Kind::Unavailable, message)
    }

    /// Git gave up before it sent anything.
    async fn not_sent(&self, answer: &Answer) -> Error {
        const WRONG: [&str; 6] =
            ["src refspec", "invalid refspec", "dst refspec", "dst ref ", "not a full refname", "not allowed"];
        let kind = if WRONG.iter().any(|word| answer.said.contains(word)) {
            Kind::Invalid
        } else if answer.said.contains("does not support --atomic") {
            Kind::Unsupported
        } else if answer.said.contains(NOTHING_ELSE) && self.has_a_hook().await {
            // Git itself would have printed more.
            let words = plain(&answer.telling_lines().join(" "));
            let words = if words.is_empty() { "it printed no reason" } else { &words };
            let message =
                format!("refused by the pre-push hook: resource=`{}`: {words}; nothing was pushed", self.resource);
            return Error::new(Kind::Unsupported, message);
        } else {
            Kind::Unavailable
        };
        Error::new(kind, format!("nothing was pushed: resource=`{}`: {}", self.resource, answer.complaint()))
    }

    /// Whether git asks a hook of this repository before it pushes.
    async fn has_a_hook(&self) -> bool {
        let git = &self.site.git;
        let Ok(answer) = git.run(["rev-parse", "--git-path", "hooks/pre-push"]).await else { return false };
        let found = std::fs::metadata(git.folder().join(answer.text()));
        answer.succeeded && found.is_ok_and(|stat| stat.is_file() && stat.permissions().mode() & 0o111 != 0)
    }

    /// Should not happen, because a fence that is not there yet is pushed alone first. If it does, people have to
    /// know.
    fn torn(&self, names: &[String]) -> Error {
        let message = format!(
            "the remote applied only a part of an atomic push: resource=`{}` has moved `{}` without the fence `{}`, so it \
             cannot be guarded; check what is there",
            self.resource,
            names.join("`, `"),
            self.fence
        );
        Error::new(Kind::Corrupt, message)
    }

    fn not_applied(&self, answer: &Answer) -> Error {
        let message = format!(
            "the remote ended the connection: resource=`{}`: {}; nothing was applied, and will not be: try again",
            self.resource,
            answer.complaint()
        );
        Error::new(Kind::Unavailable, message)
    }

    fn behind(&self, names: Vec<String>) -> Failure {
        let message = format!(
            "behind: resource=`{}` has commits on `{}` that yours does not descend from; nothing was pushed. Fetch and \
             rebase, or push with --rebase (a refspec that begins with `+` overwrites them)",
            self.resource,
            names.join("`, `")
        );
        Failure::Behind { error: Error::new(Kind::Contended, message), names }
    }

    fn contended(&self) -> Error {
        let message = format!(
            "gave up after {TRIES} tries: resource=`{}`: the fence `{}` kept moving, or the remote kept it locked; try \
             again",
            self.resource, self.fence
        );
        Error::new(Kind::Contended, message)
    }

    async fn read(&self) -> Result<Option<Fence>> {
        fence_ref::read_fence(self.site, &self.resource, &self.fence, self.steps).await
    }

    async fn make(&self, fence_message: FenceMessage) -> Result<Oid> {
        self.reach(GitStep::MakeFence)?;
        let draft = self.draft.lock().take();
        fence_ref::make_commit(self.site, &self.resource, &fence_message, draft).await
    }

    /// If the cache cannot be written, the next push reads the fence first. That is all.
    fn write_down(&self, oid: Oid, high: HighWater, before: Option<&Fence>, former: Former) {
        if self.steps.reach(GitStep::WriteCache).is_ok() {
            let _ = self.note.write(&Fence { oid, high, after: Fence::trail(before), former });
        }
    }

    fn reach(&self, step: GitStep) -> Result<()> {
        reach(self.steps, step, &self.resource)
    }
}

/// Whether the remote could not store what was sent: by its reason for a ref, or by what git printed.
fn is_unpack_failure(reason: &str, said: &str) -> bool {
    reason.contains("unpacker error") || said.contains(UNPACK)
}

async fn pause(attempt: u32) {
    if attempt > 0 {
        tokio::time::sleep(PAUSE * attempt).await;
    }
}

/// What git and the remote printed, without git's hints.
fn told(answer: &Answer) -> String {
    let is_ours = |line: &&str| !line.starts_with("hint:");
    answer.said.lines().filter(is_ours).map(|line| format!("{line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As git prints it of a remote whose disk is full, with `LC_ALL=C`.
    #[test]
    fn a_remote_that_cannot_store_is_told_from_one_that_refuses() {
        assert!(is_unpack_failure("unpacker error", ""));
        assert!(is_unpack_failure("", "error: remote unpack failed: index-pack abnormal exit\n"));
        assert!(!is_unpack_failure("pre-receive hook declined", "remote: no\n"));
    }
}
