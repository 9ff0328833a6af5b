//! One fenced push: the fence and the branches move together, or nothing does.
//!
//! Promise: a push is sent with the fence's expected value, known from before or read; the remote's comparison is the only
//! one that decides. An answer that was lost is resolved by the refs themselves: the fence points at our commit, or past it,
//! and the branches at what was pushed, or past that; or the fence is moved so that our push can never land any more. A git
//! server syncs a ref before it shows it, and answers after that: an answer promises no more than the sight. Non-promise: after that, no retry with the branches; that is asked for
//! anew.

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
use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// How often a fence that moves under our hands is read again. Every miss means that somebody of our own tenure landed.
const TRIES: u32 = 24;
/// Between two tries, times the number of tries so far.
const PAUSE: Duration = Duration::from_millis(15);

/// With which git says why the remote could not keep what was sent.
const UNPACK: &str = "remote unpack failed:";

/// Why a push did not land.
#[derive(Debug)]
pub(super) enum Failure {
    /// These branches have commits that ours do not.
    Behind { error: Error, names: Vec<String> },
    /// Anything else.
    Final(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::Final(error)
    }
}

/// One token at one remote.
pub(super) struct FencedPush<'a> {
    site: &'a Site,
    resource: String,
    fence: String,
    token: &'a Token,
    policy: Policy,
    steps: &'a Observed<GitStep>,
    note: Note,
    /// Used by the first push; later ones start another.
    draft: Mutex<Option<CommitDraft>>,
}

/// What one `git push` led to, when it was not refused.
enum Outcome {
    Landed(String),
    Moved,
    Behind(Vec<String>),
}

impl<'a> FencedPush<'a> {
    pub(super) fn new(
        site: &'a Site,
        resource: String,
        fence: String,
        token: &'a Token,
        policy: Policy,
        steps: &'a Observed<GitStep>,
    ) -> Self {
        let note = Note::new(&site.folder, &site.shown(), &fence);
        FencedPush { site, resource, fence, token, policy, steps, note, draft: Mutex::default() }
    }

    /// With a commit that was begun beforehand.
    pub(super) fn with_draft(self, draft: Option<CommitDraft>) -> Self {
        FencedPush { draft: Mutex::new(draft), ..self }
    }

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
                // What was noted may be of another life of the remote: only what it says itself refuses.
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

    /// Whether the fence is to be moved alone before the branches go with it. Where there is none yet, the remote may not
    /// take it: git applies the rest of an atomic push if one of its refs is hidden from pushers. And where it sorts
    /// after a branch, a crash of the remote could leave the branch moved and the fence not, which a sealed one bears.
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
            // Told like a lost race, but it would be lost for ever.
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

    /// The remote gave no answer: the fence says what became of the push.
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
                "no answer: resource=`{}` may or may not have taken the push ({}), and {why}; read it back before \
                 anything else: git ls-remote {} {}",
                self.resource,
                answer.complaint(),
                self.site.shown(),
                self.fence
            );
            Error::new(Kind::Indeterminate, message)
        };
        for _ in 0..3 {
            let now = self.read().await.map_err(|e| unknown("it cannot be asked").with_source(e))?;
            let was = found.map(|fence| &fence.oid);
            match &now {
                // It is ours, or somebody moved it on from ours. A remote that crashed in the middle has moved the fence alone.
                Some(fence) if fence.oid == oid || fence.after.contains(&oid) => {
                    let theirs = branches::first_missing(self.site, refspecs).await;
                    if let Some(name) = theirs.map_err(|e| unknown("it cannot be asked").with_source(e))? {
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
                // Somebody moved it on from where it was, and not by ours: that can land no more.
                Some(fence) if Some(&fence.oid) != was && fence.passed(was) => return Ok(Outcome::Moved),
                Some(fence) if Some(&fence.oid) != was => return Err(unknown("the fence was moved many times since")),
                None if was.is_some() => return Err(unknown("its fence is gone")),
                // A seal may simply be sent again: whichever lands, the other cannot.
                _ if refspecs.is_empty() => return Ok(Outcome::Moved),
                // It may still be on its way. Once the fence has moved, it cannot land.
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
                    None => return Err(unknown("it does not answer any more")),
                },
            }
        }
        Err(unknown("the fence keeps moving"))
    }

    /// Moves the fence alone, so that a push that is on its way from the same place fails. Whether it was moved; none if
    /// that is unknown too.
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
        // A hook's refusal may be its way to say that somebody was quicker.
        let now = self.read().await?;
        if now.as_ref().map(|fence| &fence.oid) != found.map(|fence| &fence.oid) {
            return Ok(Outcome::Moved);
        }
        let words: Vec<&str> =
            answer.said.lines().filter_map(|line| line.strip_prefix("remote:")).map(str::trim).collect();
        if reason.contains("unpacker error") || answer.said.contains(UNPACK) {
            return Err(self.not_stored(answer, &words));
        }
        let advice = if name == self.fence && !reason.contains("hook declined") {
            "; if this remote does not take refs of that name, keep the fences elsewhere: --fence-namespace \
             refs/heads/00-fence or refs/tags/fence"
        } else {
            ""
        };
        let words = if words.is_empty() { String::new() } else { format!(": {}", plain(&words.join(" "))) };
        let message =
            format!("refused by the remote: resource=`{}` ref `{name}`: {reason}{words}{advice}", self.resource);
        Err(Error::new(Kind::Unsupported, message))
    }

    /// The remote had no room, or no right, to keep it; whatever the refs are called.
    fn not_stored(&self, answer: &Answer, words: &[&str]) -> Error {
        let reason = answer.said.lines().find_map(|line| line.split_once(UNPACK)).map(|(_, reason)| reason.trim());
        let said: Vec<&str> = reason.into_iter().chain(words.iter().copied()).filter(|word| !word.is_empty()).collect();
        let message = format!(
            "the remote could not store what was sent: resource=`{}`: {}; nothing was applied: see that you may write there, \
             and that it has room",
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
            // Git itself would have said more than that.
            let words = plain(&answer.telling_lines().join(" "));
            let words = if words.is_empty() { "it gives no reason" } else { &words };
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

    /// Not seen since the fence goes first where there is none; if it is seen after all, people have to know.
    fn torn(&self, names: &[String]) -> Error {
        let message = format!(
            "the remote took a part of an atomic push: resource=`{}` has moved `{}` without the fence `{}`, so it is not \
             fit to be guarded; look at what is there",
            self.resource,
            names.join("`, `"),
            self.fence
        );
        Error::new(Kind::Corrupt, message)
    }

    fn not_applied(&self, answer: &Answer) -> Error {
        let message = format!(
            "the remote broke off: resource=`{}`: {}; nothing was applied, and cannot be any more: try again",
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
            "given up after {TRIES} tries: resource=`{}`: the fence `{}` kept moving, or the remote kept it locked; try \
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
        let draft = self.draft.lock().unwrap_or_else(PoisonError::into_inner).take();
        fence_ref::make_commit(self.site, &self.resource, &fence_message, draft).await
    }

    /// A note that cannot be written costs the next push a question, and nothing else.
    fn write_down(&self, oid: Oid, high: HighWater, before: Option<&Fence>, former: Former) {
        if self.steps.reach(GitStep::WriteCache).is_ok() {
            let _ = self.note.write(&Fence { oid, high, after: Fence::trail(before), former });
        }
    }

    fn reach(&self, step: GitStep) -> Result<()> {
        reach(self.steps, step, &self.resource)
    }
}

async fn pause(attempt: u32) {
    if attempt > 0 {
        tokio::time::sleep(PAUSE * attempt).await;
    }
}

/// What git and the remote said, without what concerns only us.
fn told(answer: &Answer) -> String {
    let is_ours = |line: &&str| !line.starts_with("hint:");
    answer.said.lines().filter(is_ours).map(|line| format!("{line}\n")).collect()
}
