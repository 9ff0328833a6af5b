//! Who is notified of what: the part of a `[[notify]]` table that does not say how.

use super::cause::{Cause, Causes};
use super::facts::Subject;
use leasehold_core::item::QueueName;
use leasehold_core::{Error, NamePattern, Result};
use std::str::FromStr;
use std::time::Duration;

/// The prefix of our own queues' names.
pub const RESERVED: &str = "leasehold.notify.";
/// The longest name of a channel: with the prefix, it is the name of a queue.
const MAX_CHANNEL_BYTES: usize = 40;

/// The name of a rule. Machines that deliver for the same rule use the same queue by it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Channel(String);

impl Channel {
    /// A name for a rule that has none: the public part of its target, such as `webhook-hooks.example.com`, and a
    /// digest of the whole target, which may be secret.
    pub fn of_target(shown: &str, target: &str) -> Self {
        const DIGEST_BYTES: usize = 9;
        let plain = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-') { c } else { '-' };
        let shown: String = shown.chars().map(plain).take(MAX_CHANNEL_BYTES - DIGEST_BYTES).collect();
        Channel(format!("{shown}-{:08x}", crate::digest::digest([target]) as u32))
    }

    /// The name, as settings and records have it.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The queue in which its messages wait.
    pub fn queue(&self) -> Result<QueueName> {
        format!("{RESERVED}{}", self.0).parse()
    }

    /// Whether a queue is one of these.
    pub fn is_reserved(queue: &QueueName) -> bool {
        queue.as_str().starts_with(RESERVED)
    }
}

impl FromStr for Channel {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let is_plain = text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'));
        if (1..=MAX_CHANNEL_BYTES).contains(&text.len()) && is_plain {
            return Ok(Channel(text.to_owned()));
        }
        Err(Error::invalid("name", text, format!("use 1 to {MAX_CHANNEL_BYTES} of A-Z a-z 0-9 . _ -")))
    }
}

/// When a channel is notified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// The channel that is notified.
    pub channel: Channel,
    /// The causes that it is notified of.
    pub on: Causes,
    /// For which scheduled jobs.
    pub jobs: Vec<NamePattern>,
    /// For which queues, and for which spools, which are named `spool:/path`.
    pub queues: Vec<NamePattern>,
    /// For which leases, scheduled or not.
    pub names: Vec<NamePattern>,
    /// After this many failures or losses in a row, at least 1.
    pub after: u32,
    /// After this many successes in a row it counts as recovered; at least 1.
    pub recovered_after: u32,
    /// How often to repeat that it is still down; never if none.
    pub remind: Option<Duration>,
}

impl Rule {
    /// Whether it is about this subject. A rule without patterns is about every subject.
    pub fn is_about(&self, subject: &Subject) -> bool {
        if self.jobs.is_empty() && self.queues.is_empty() && self.names.is_empty() {
            return true;
        }
        let any = |patterns: &[NamePattern], name: &str| patterns.iter().any(|pattern| pattern.matches(name));
        match subject {
            Subject::Job(name) => any(&self.jobs, name.as_str()) || any(&self.names, name.as_str()),
            Subject::Lease(name) => any(&self.names, name.as_str()),
            Subject::Queue(_) | Subject::Spool(..) => any(&self.queues, subject.name()),
        }
    }

    /// Whether later facts can be judged only in comparison with the first ones, even if those were empty.
    pub(super) fn needs_baseline(&self, subject: &Subject) -> bool {
        match subject {
            Subject::Job(_) => self.on.has(Cause::Fenced) || self.watches_slots(),
            Subject::Lease(_) => self.on.has(Cause::Fenced),
            Subject::Queue(_) | Subject::Spool(..) => self.on.has(Cause::DeadLetter),
        }
    }

    /// Whether it covers how a run ended.
    pub fn tells_of_ends(&self) -> bool {
        self.on.has(Cause::Failed) || self.on.has(Cause::Lost)
    }

    /// Whether it covers the slots of a job.
    pub fn watches_slots(&self) -> bool {
        self.on.has(Cause::Missed) || self.on.has(Cause::Late)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_channel_has_a_queue() {
        let longest: Channel = "x".repeat(MAX_CHANNEL_BYTES).parse().unwrap();
        assert!(Channel::is_reserved(&longest.queue().unwrap()));
        assert!("x".repeat(MAX_CHANNEL_BYTES + 1).parse::<Channel>().is_err() && "a b".parse::<Channel>().is_err());
    }

    #[test]
    fn a_channel_without_a_name_is_called_by_what_may_be_seen_of_it() {
        let webhook = Channel::of_target("webhook-hooks.example.com:8443", "https://hooks.example.com:8443/T0/hunter2");
        assert!(webhook.as_str().starts_with("webhook-hooks.example.com-8443-"), "{webhook:?}");
        assert_eq!(webhook.as_str().parse::<Channel>().unwrap(), webhook);
        assert_ne!(Channel::of_target("command-sh", "a"), Channel::of_target("command-sh", "b"));
        let longest = Channel::of_target(&"é".repeat(300), "a");
        assert_eq!(longest.as_str().parse::<Channel>().unwrap(), longest);
    }
}
