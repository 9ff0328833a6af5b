//! What would help about an error, in words of the command: the library knows what to do, and here is how.
//!
//! Promise: a command that is shown says which record of which store it is for, so that pasted elsewhere it changes nothing; a
//! shell takes it as it is shown. Non-promise: where nobody knows the store, its place is held by a word that is no address.

use leasehold_core::relocation::Address;
use leasehold_core::{Remedy, TokenKind};

/// What follows the message of an error with this remedy, in the store at this address if it is known.
pub fn words(remedy: &Remedy, store: Option<&str>) -> String {
    let address = |unknown: &str| shell_word(store.unwrap_or(unknown));
    match remedy {
        Remedy::Advance { lease, past, back_to } => {
            let lineage = back_to.map(|(lineage, found)| format!(" --lineage {lineage} --if-lineage {found}"));
            let why = if back_to.is_some() { "lost" } else { "restored from an old copy" };
            format!(
                "; heal with: leasehold advance {lease} --past {past}{} --store {} --why 'the store was {why}'",
                lineage.unwrap_or_default(),
                address("STORE")
            )
        }
        Remedy::Retry { lease, past } => {
            let end = format!("--past {past}");
            let why = "--why 'the store was restored from an old copy'";
            let mut parts = lease.as_str().rsplit('/');
            let (id, queue) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
            match TokenKind::of(lease) {
                TokenKind::SpoolFile => {
                    format!("; heal with: leasehold queue retry {} {id} {end} {why}", address("spool:PATH"))
                }
                _ => {
                    format!("; heal with: leasehold queue retry {queue} {id} {end} --store {} {why}", address("STORE"))
                }
            }
        }
        Remedy::Adopt { resource } => format!(
            "; heal with: leasehold adopt {} --token \"$LEASEHOLD_TOKEN\" --why 'the store was lost'",
            shell_word(resource)
        ),
        Remedy::GiveAway => " with `leasehold adopt`".into(),
        Remedy::LeaseTheWrite => ": run the write with `leasehold run NAME --wait 1m -- leasehold write ...`".into(),
        Remedy::Examine => {
            "; `leasehold doctor` on this store says who began it and how to finish it or to give it up".into()
        }
        Remedy::ExamineSpool { path } => {
            let path = path.as_ref().map_or_else(|| "PATH".into(), |path| path.to_string_lossy());
            format!("; what to change: leasehold doctor {}", shell_word(&format!("spool:{path}")))
        }
        Remedy::FinishMigration { from, to } => {
            let (finish, give_up) = migration(from, to);
            format!(": finish with `{finish}`, or give it up with `{give_up}`")
        }
        Remedy::CompleteMigration { from, to } => format!(": `{}`", migration(from, to).0),
        Remedy::AbortMigration { from, to } => {
            let end = |end: &Option<Address>| end.as_ref().map_or("STORE".into(), |end| shell_word(end.as_str()));
            let is_known = from.is_some() && to.is_some();
            let note = if is_known { "" } else { ", where STORE is this store's address" };
            format!(": take it back with `leasehold migrate {} {} --abort`{note}", end(from), end(to))
        }
        Remedy::ListItems { queue: Some(queue) } => format!("; see `leasehold queue ls {queue}`"),
        Remedy::ListItems { queue: None } => ", as `leasehold queue ls` shows it".into(),
        Remedy::CleanQueue { queue } => format!(", and `leasehold queue janitor {queue}` at once"),
        Remedy::NameSpool => {
            "; give --store spool:/path, or set LEASEHOLD_QUEUE to it, as `leasehold work` does".into()
        }
        Remedy::StartWithTheMachine => " with `leasehold run NAME -- COMMAND`".into(),
        Remedy::SetUpSql => " with: leasehold sql URL --init".into(),
        Remedy::InstallHook => " with `leasehold git-hook install`".into(),
        Remedy::PushThroughTheGuard => "; push with `leasehold push`".into(),
        Remedy::NameBranch { remote, branch } => format!(": leasehold push {remote} {branch}"),
        Remedy::PublishTheFolder => "; replace whole folders with `leasehold publish`".into(),
        Remedy::WriteTheFile => "; single files are for `leasehold write`".into(),
        Remedy::StartServer => "; is `leasehold serve` running there?".into(),
        Remedy::ManageKeys => "; the keys are managed with `leasehold key`".into(),
        Remedy::ChooseStateFolder => "; give another with --state, or go without one by --no-state".into(),
        // What the library learns to say is put into words here, or is not said.
        _ => String::new(),
    }
}

/// The commands that finish a migration and that give it up, as a shell takes them.
pub fn migration(from: &Address, to: &Address) -> (String, String) {
    let finish = format!("leasehold migrate {} {}", shell_word(from.as_str()), shell_word(to.as_str()));
    let give_up = format!("{finish} --abort");
    (finish, give_up)
}

/// As a shell takes it for one word.
fn shell_word(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@%+=,".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_core::{Epoch, Error, Kind, LeaseName, Lineage, StoredLineage, put_into_words};

    fn told(remedy: Remedy, store: &str) -> String {
        put_into_words(words);
        Error::new(Kind::Regressed, "gone back").with_remedy(remedy).in_store(store).to_string()
    }

    #[test]
    fn a_command_that_heals_names_the_store_and_what_is_there() {
        let (lineage, other) = (Lineage::from_u128(10), Lineage::from_u128(11));
        let (lease, five) = (LeaseName::new("daily").unwrap(), Epoch::new(5).unwrap());
        let store = "dir:/mnt/a b";
        assert_eq!(
            told(Remedy::restored(&lease, five), store),
            "gone back; heal with: leasehold advance daily --past 5 --store 'dir:/mnt/a b' --why 'the store was restored from \
             an old copy'"
        );
        let lost = Remedy::lost("file:x", &lease, five, lineage, StoredLineage::Lineage(other));
        assert!(told(lost, store).contains(&format!(
            "--lineage {lineage} --if-lineage {other} --store 'dir:/mnt/a b' --why 'the store was lost'"
        )));
        let item = LeaseName::new("queue/mail/k.one").unwrap();
        let retried = told(Remedy::restored(&item, five), store);
        assert!(
            retried.contains("leasehold queue retry mail k.one --past 5 --store 'dir:/mnt/a b' --why"),
            "{retried}"
        );
        let file = LeaseName::new("spool/k.one").unwrap();
        let in_spool = Remedy::restored(&file, five);
        assert!(told(in_spool.clone(), store).contains("leasehold queue retry spool:PATH k.one --past 5 --why"));
        assert!(told(in_spool, "spool:/p").contains("leasehold queue retry spool:/p k.one --past 5 --why"));
        let adopted = Remedy::lost("file:it's", &item, five, lineage, StoredLineage::Nothing);
        assert!(told(adopted, store).contains(r"leasehold adopt 'file:it'\''s' --token"));
    }

    #[test]
    fn what_servers_need_is_named_by_its_verb() {
        let told = |remedy| told(remedy, "leasehold://h/ci");
        let state = "gone back; give another with --state, or go without one by --no-state";
        assert_eq!(told(Remedy::ChooseStateFolder), state);
        assert_eq!(told(Remedy::StartServer), "gone back; is `leasehold serve` running there?");
        assert_eq!(told(Remedy::ManageKeys), "gone back; the keys are managed with `leasehold key`");
    }

    #[test]
    fn no_store_is_named_that_is_not_known_and_no_password() {
        put_into_words(words);
        let remedy = Remedy::restored(&LeaseName::new("daily").unwrap(), Epoch::new(5).unwrap());
        let error = Error::new(Kind::Regressed, "gone back").with_remedy(remedy);
        assert!(error.to_string().contains("--store STORE "));
        let error = error.in_store("postgres://u:hunter2@h/d");
        assert!(error.to_string().contains("postgres://u:***@h/d") && !error.to_string().contains("hunter2"));
    }

    #[test]
    fn a_shell_takes_the_commands_as_they_are_shown() {
        let address = |text: &str| text.parse::<Address>().unwrap();
        let (finish, give_up) = migration(&address("dir:/a"), &address("redis://h?namespace=a&x='"));
        assert_eq!(finish, "leasehold migrate dir:/a 'redis://h?namespace=a&x='\\'''");
        assert_eq!(give_up, format!("{finish} --abort"));
    }
}
