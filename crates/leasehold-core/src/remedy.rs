//! The command by which a person heals what an error is about.
//!
//! Promise: it says which record of which store it is for, so that pasted elsewhere it changes nothing. Non-promise: the
//! library does not know how its caller came by the store; until [`crate::Error::in_store`] says so, its place is held by a
//! word that is no store's address.

use crate::resolve::Right;
use crate::secret::redacted;
use crate::text::shell_word;
use crate::{Epoch, LeaseName, Lineage};
use std::fmt;

/// What to do, and in which store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remedy {
    step: Step,
    store: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    Advance { lease: LeaseName, past: Epoch, back_to: Option<(Lineage, StoredLineage)> },
    Retry { lease: LeaseName, past: Epoch },
    Adopt { resource: String },
}

/// The lineage of the record that the store has, as far as it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoredLineage {
    /// It has none of that name.
    Nothing,
    /// This one.
    Lineage(Lineage),
}

impl fmt::Display for StoredLineage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoredLineage::Nothing => f.write_str("none"),
            StoredLineage::Lineage(lineage) => write!(f, "{lineage}"),
        }
    }
}

impl Remedy {
    /// A guard has seen an epoch that the store, which was restored from an old copy, does not know.
    pub fn restored(lease: &LeaseName, seen: Epoch) -> Self {
        let step = match Right::of(lease) {
            Right::Lease => Step::Advance { lease: lease.clone(), past: seen, back_to: None },
            Right::Item | Right::SpoolFile => Step::Retry { lease: lease.clone(), past: seen },
        };
        Remedy { step, store: None }
    }

    /// A guard has seen an epoch of a lineage that the store, which was lost and begun anew, does not have.
    pub fn lost(resource: &str, lease: &LeaseName, seen: Epoch, lineage: Lineage, found: StoredLineage) -> Self {
        let step = match Right::of(lease) {
            Right::Lease => Step::Advance { lease: lease.clone(), past: seen, back_to: Some((lineage, found)) },
            // An item has a short life: its work is added anew, and what it wrote goes to the new one.
            Right::Item | Right::SpoolFile => Step::Adopt { resource: resource.to_owned() },
        };
        Remedy { step, store: None }
    }

    /// A spool is no store, and a store no spool: an address of the wrong kind is left out.
    pub(crate) fn in_store(self, address: &str) -> Self {
        let is_spool = address.starts_with("spool:");
        if is_spool == self.is_for_a_spool() { Remedy { store: Some(redacted(address)), ..self } } else { self }
    }

    fn is_for_a_spool(&self) -> bool {
        matches!(&self.step, Step::Retry { lease, .. } if Right::of(lease) == Right::SpoolFile)
    }
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let store = |unknown: &str| shell_word(self.store.as_deref().unwrap_or(unknown));
        match &self.step {
            Step::Advance { lease, past, back_to } => {
                write!(f, "leasehold advance {lease} --past {past}")?;
                if let Some((lineage, found)) = back_to {
                    write!(f, " --lineage {lineage} --if-lineage {found}")?;
                }
                let why = if back_to.is_some() { "lost" } else { "restored from an old copy" };
                write!(f, " --store {} --why 'the store was {why}'", store("STORE"))
            }
            Step::Retry { lease, past } => {
                let parts: Vec<&str> = lease.as_str().split('/').collect();
                let end = "--why 'the store was restored from an old copy'";
                match &parts[..] {
                    ["queue", queue, id] => {
                        write!(f, "leasehold queue retry {queue} {id} --past {past} --store {} {end}", store("STORE"))
                    }
                    parts => {
                        let id = parts.last().copied().unwrap_or_default();
                        write!(f, "leasehold queue retry {} {id} --past {past} {end}", store("spool:PATH"))
                    }
                }
            }
            Step::Adopt { resource } => {
                let resource = shell_word(resource);
                write!(f, "leasehold adopt {resource} --token \"$LEASEHOLD_TOKEN\" --why 'the store was lost'")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Error, Kind};

    fn told(remedy: Remedy) -> String {
        Error::new(Kind::Regressed, "gone back; heal with").with_remedy(remedy).in_store("dir:/mnt/a b").to_string()
    }

    #[test]
    fn a_command_that_heals_names_the_store_and_what_is_there() {
        let (lineage, other) = (Lineage::from_u128(10), Lineage::from_u128(11));
        let lease = LeaseName::new("daily").unwrap();
        let restored = Remedy::restored(&lease, Epoch::new(5).unwrap());
        assert_eq!(
            told(restored),
            "gone back; heal with: leasehold advance daily --past 5 --store 'dir:/mnt/a b' --why 'the store was restored from \
             an old copy'"
        );
        let lost = Remedy::lost("file:x", &lease, Epoch::new(5).unwrap(), lineage, StoredLineage::Lineage(other));
        assert!(told(lost).contains(&format!(
            "--lineage {lineage} --if-lineage {other} --store 'dir:/mnt/a b' --why 'the store was lost'"
        )));
        let item = LeaseName::new("queue/mail/k.one").unwrap();
        let retried = Remedy::restored(&item, Epoch::new(5).unwrap());
        assert!(told(retried).contains("leasehold queue retry mail k.one --past 5 --store 'dir:/mnt/a b' --why"));
        let file = LeaseName::new("spool/k.one").unwrap();
        let in_spool = Remedy::restored(&file, Epoch::new(5).unwrap());
        assert!(told(in_spool.clone()).contains("leasehold queue retry spool:PATH k.one --past 5 --why"));
        let told_of_spool = in_spool.in_store("spool:/p").in_store("sqlite:/db").to_string();
        assert!(told_of_spool.contains("leasehold queue retry spool:/p k.one --past 5 --why"));
        let adopted = Remedy::lost("file:it's", &item, Epoch::new(5).unwrap(), lineage, StoredLineage::Nothing);
        assert!(told(adopted).contains(r"leasehold adopt 'file:it'\''s' --token"));
    }

    #[test]
    fn no_store_is_named_that_is_not_known_and_no_password() {
        let lease = LeaseName::new("daily").unwrap();
        let remedy = Remedy::restored(&lease, Epoch::new(5).unwrap());
        let error = Error::new(Kind::Regressed, "heal with").with_remedy(remedy);
        assert!(error.to_string().contains("--store STORE "));
        let error = error.in_store("postgres://u:hunter2@h/d");
        assert!(error.to_string().contains("postgres://u:***@h/d") && !error.to_string().contains("hunter2"));
    }
}
