//! The names of records in a bucket.
//!
//! Promise: every key has a subject of its own, in characters that NATS and its tools allow in a key, and the name can
//! be read back from the subject. Non-promise: subjects do not sort as names do.

use crate::url::Namespace;
use leasehold_core::{Key, LeaseName, Shelf};

/// The bucket, stream and subjects of one namespace.
#[derive(Debug, Clone)]
pub(super) struct Names {
    /// The bucket, as `nats kv` shows it.
    pub(super) bucket: String,
    /// The stream behind it.
    pub(super) stream: String,
}

impl Names {
    pub(super) fn new(namespace: &Namespace) -> Self {
        let bucket = format!("leasehold-{namespace}");
        Names { stream: format!("KV_{bucket}"), bucket }
    }

    /// Every subject of the bucket.
    pub(super) fn all(&self) -> String {
        format!("$KV.{}.>", self.bucket)
    }

    /// Every subject of a shelf.
    pub(super) fn shelf(&self, shelf: Shelf) -> String {
        format!("$KV.{}.{}.*", self.bucket, shelf.as_str())
    }

    /// The subject of one record. A `.` would end a token, and `.hidden` or `a..b` would have an empty token.
    pub(super) fn subject(&self, key: &Key) -> String {
        let name = key.name.as_str().replace('.', "=2E");
        format!("$KV.{}.{}.{name}", self.bucket, key.shelf.as_str())
    }

    /// The name in a subject; none if this store cannot have written it.
    pub(super) fn name_of(&self, subject: &str) -> Option<LeaseName> {
        let token = subject.rsplit('.').next()?;
        let name = token.replace("=2E", ".");
        LeaseName::new(name).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_gives_its_name_back() {
        let names = Names::new(&Namespace::new("team-7").unwrap());
        assert_eq!(names.stream, "KV_leasehold-team-7");
        for name in ["a", "a/b.c", ".hidden", "a..b", "A_1.2-3", "2E", &".".repeat(200)] {
            let Ok(name) = LeaseName::new(name) else { panic!("{name} is a lease name") };
            let subject = names.subject(&Key::new(Shelf::Probe, &name));
            assert_eq!(names.name_of(&subject), Some(name.clone()), "{subject}");
            assert_eq!(subject.matches('.').count(), 3, "{subject}");
            assert!(subject.starts_with("$KV.leasehold-team-7.probe."), "{subject}");
        }
        for foreign in ["$KV.leasehold-team-7.probe.a=20", "$KV.leasehold-team-7.probe.", "x.*"] {
            assert_eq!(names.name_of(foreign), None, "{foreign}");
        }
    }
}
