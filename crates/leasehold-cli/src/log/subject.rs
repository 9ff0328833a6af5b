//! What this process is at: the run, or the item, that its lines are about.
//!
//! Promise: while one is set, each line has its fields, and its message names it where one log has several.
//! Non-promise: a line that says itself what it is about is left as it is.

use serde_json::Value;
use std::fmt;
use std::sync::{PoisonError, RwLock};

/// A run or an item.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Subject {
    /// The scheduled job.
    pub job: Option<String>,
    pub lease: Option<String>,
    pub queue: Option<String>,
    pub item: Option<String>,
    /// As [`leasehold_work::schedule::slot_text`] has it.
    pub slot: Option<String>,
    pub epoch: Option<u64>,
    /// Whether messages name it too. Who runs one thing by hand knows what it is.
    pub is_one_of_many: bool,
}

/// The fields by which a line says itself what it is about.
const OWN: [&str; 4] = ["job", "lease", "queue", "item"];

static SUBJECT: RwLock<Option<Subject>> = RwLock::new(None);

/// From now on lines are about this, or about nothing in particular.
pub fn about(subject: Option<Subject>) {
    *SUBJECT.write().unwrap_or_else(PoisonError::into_inner) = subject;
}

/// More has become known of what lines are about.
pub fn refine(more: impl FnOnce(&mut Subject)) {
    let mut subject = SUBJECT.write().unwrap_or_else(PoisonError::into_inner);
    more(subject.get_or_insert_with(Subject::default));
}

/// What lines are about now, in words.
pub fn subject() -> String {
    SUBJECT
        .read()
        .unwrap_or_else(PoisonError::into_inner)
        .as_ref()
        .map_or_else(|| "the run".into(), ToString::to_string)
}

/// What a line with these fields is about, if it does not say so itself.
pub(super) fn of_line(fields: &[(&'static str, Value)]) -> Option<Subject> {
    let says_itself = fields.iter().any(|(name, _)| OWN.contains(name));
    SUBJECT.read().unwrap_or_else(PoisonError::into_inner).clone().filter(|_| !says_itself)
}

impl Subject {
    pub(super) fn fields(self) -> impl Iterator<Item = (&'static str, Value)> {
        let Subject { job, lease, queue, item, slot, epoch, .. } = self;
        let texts = [("job", job), ("lease", lease), ("queue", queue), ("item", item), ("slot", slot)];
        let texts = texts.into_iter().filter_map(|(name, text)| Some((name, Value::from(text?))));
        texts.chain(epoch.map(|epoch| ("epoch", Value::from(epoch))))
    }

    /// What a message has to begin with, so that it names this.
    pub(super) fn prefix(&self, message: &str) -> Option<String> {
        let names = [self.name(), self.queue.as_ref(), self.slot.as_ref()];
        let is_named = names.into_iter().flatten().all(|name| message.contains(name.as_str()));
        (self.is_one_of_many && !is_named).then(|| format!("{self}: "))
    }

    fn name(&self) -> Option<&String> {
        self.item.as_ref().or(self.job.as_ref()).or(self.lease.as_ref()).or(self.queue.as_ref())
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`", self.name().map_or("", String::as_str))?;
        if let (Some(_), Some(queue)) = (&self.item, &self.queue) {
            write!(f, " of `{queue}`")?;
        }
        if let Some(slot) = &self.slot {
            write!(f, " for slot {slot}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_many_names_what_it_is_about() {
        let slot = "2026-11-01T03:00:00Z";
        let run = Subject { job: Some("nightly".into()), slot: Some(slot.into()), ..Subject::default() };
        assert_eq!(run.prefix("it was stopped"), None);
        let run = Subject { is_one_of_many: true, ..run };
        assert_eq!(run.prefix("it was stopped").unwrap(), format!("`nightly` for slot {slot}: "));
        assert_eq!(run.prefix("`nightly` was stopped").unwrap(), format!("`nightly` for slot {slot}: "));
        assert_eq!(run.prefix(&format!("{run} was stopped")), None);
        let (queue, item) = (Some("mail".into()), Some("a1".into()));
        let item = Subject { queue, item, is_one_of_many: true, ..Subject::default() };
        assert_eq!(item.prefix("it was stopped").unwrap(), "`a1` of `mail`: ");
        assert_eq!(item.prefix("`a1` of `mail` was stopped"), None);
    }

    #[test]
    fn a_line_that_says_what_it_is_about_is_left_alone() {
        about(Some(Subject { lease: Some("nightly".into()), epoch: Some(3), ..Subject::default() }));
        assert_eq!(of_line(&[("queue", "mail".into())]), None);
        let fields: Vec<_> = of_line(&[("outcome", "lost".into())]).unwrap().fields().collect();
        assert_eq!(fields, [("lease", "nightly".into()), ("epoch", 3.into())]);
        about(None);
        assert_eq!(of_line(&[]), None);
    }
}
