//! The first key, which the first server makes, and the file that it goes to.
//!
//! Promise: it is made once, by however many servers, and shown once; one that cannot be shown to anybody is ended. A start that is
//! killed can be repeated: before the key counts, it is in `FILE.pending`, and the next start, or
//! another server of this machine, uses that one. A file that is there is not replaced, and a key in it is not used again.

use crate::output;
use crate::verbs::operate::by;
use leasehold_core::{Error, Kind, Nonce, Result, Why};
use leasehold_server::access::{KeyRecord, Keys, Secret};
use leasehold_system::rename;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// What a file with a key has at most.
const MAX_BYTES: u64 = 200;
/// The bits of a mode that are others'.
const OTHERS: u32 = 0o077;

/// Makes the first key if there is none, and shows it once.
pub async fn make(keys: &Keys, file: Option<&Path>) -> Result<()> {
    match file {
        Some(file) => FirstKeyFile::new(file).fill(keys).await,
        None if keys.is_empty().await? => print(keys).await,
        None => Ok(()),
    }
}

async fn print(keys: &Keys) -> Result<()> {
    let Some((secret, record)) = keys.bootstrap(by(None)?).await? else { return Ok(()) };
    // Not by the log, which may be turned off, or collected where others read it.
    let shown = writeln!(
        std::io::stderr(),
        "leasehold: made the first key, which may do everything. It is not shown again; keep it, make others with \
         `leasehold key create`, then `leasehold key revoke {} --why 'no longer needed'`:\n\n    {}\n",
        record.id,
        secret.reveal()
    );
    match shown {
        Ok(()) => Ok(()),
        Err(error) => Err(ended(keys, &record, error).await),
    }
}

/// Ends a key that nobody was shown.
async fn ended(keys: &Keys, record: &KeyRecord, error: io::Error) -> Error {
    let id = &record.id;
    let revoking = async { keys.revoke(id, &by(None)?, &Why::new("it could not be shown to anybody")?).await };
    let now = if revoking.await.is_ok() { "is revoked" } else { "must be revoked" };
    let message =
        format!("the first key, {id}, cannot be written, and {now}; make another with `leasehold key create`");
    Error::new(Kind::Unavailable, message).with_source(error)
}

struct FirstKeyFile<'a> {
    path: &'a Path,
    /// Where the key is until it counts.
    pending: PathBuf,
}

impl<'a> FirstKeyFile<'a> {
    fn new(path: &'a Path) -> Self {
        FirstKeyFile { path, pending: with_ending(path, "pending") }
    }

    async fn fill(&self, keys: &Keys) -> Result<()> {
        if !keys.is_empty().await? {
            return self.end(keys).await;
        }
        if self.path.symlink_metadata().is_ok() {
            // Perhaps another server of this machine has just written it.
            if !keys.is_empty().await? {
                return self.end(keys).await;
            }
            let taken = io::Error::from(ErrorKind::AlreadyExists);
            return Err(self.cannot("; it must be a new one, and no key is in use yet").with_source(taken));
        }
        let secret = self.reserved()?;
        match keys.bootstrap_as(&secret, by(None)?).await? {
            Some(record) => self.keep(keys, &secret, &record).await,
            None => self.end(keys).await,
        }
    }

    /// The store has keys: perhaps an earlier start was killed when it had made the one that is here.
    async fn end(&self, keys: &Keys) -> Result<()> {
        if let Some(secret) = own_secret(&self.pending) {
            if let Some(record) = keys.bootstrap_as(&secret, by(None)?).await? {
                return self.keep(keys, &secret, &record).await;
            }
            // Another server was faster: this one never counted.
            let _ = std::fs::remove_file(&self.pending);
        }
        let file = self.path.display();
        output::say(&format!(
            "the store has keys already, so none was written to {file}; `leasehold key create` makes another"
        ));
        Ok(())
    }

    /// A key on disk that does not count yet: that of an earlier start, or of another server that starts now, or a new one.
    fn reserved(&self) -> Result<Secret> {
        if let Some(secret) = own_secret(&self.pending) {
            return Ok(secret);
        }
        let failed = |e: io::Error| self.cannot("").with_source(e);
        let (secret, draft) = (Keys::first_secret()?, with_ending(self.path, &Nonce::random().to_string()));
        let placed = write(&draft, &secret).and_then(|()| move_to(&draft, &self.pending));
        if placed.is_err() {
            let _ = std::fs::remove_file(&draft);
        }
        match placed {
            Ok(()) => Ok(secret),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => own_secret(&self.pending).ok_or_else(|| {
                let pending = self.pending.display();
                self.cannot(&format!(", because {pending} is in the way; remove it")).with_source(error)
            }),
            Err(error) => Err(failed(error)),
        }
    }

    /// Gives the file its name. Another server of this machine may do so at the same time.
    async fn keep(&self, keys: &Keys, secret: &Secret, record: &KeyRecord) -> Result<()> {
        let moved = move_to(&self.pending, self.path);
        let is_there = || own_secret(self.path).is_some_and(|found| found.reveal() == secret.reveal());
        if let Err(error) = moved
            && !is_there()
        {
            let _ = std::fs::remove_file(&self.pending);
            return Err(ended(keys, record, error).await);
        }
        let shown = self.path.display();
        output::say(&format!("made the first key, {}, which may do everything: it is in {shown}", record.id));
        Ok(())
    }

    fn cannot(&self, why: &str) -> Error {
        let message = format!("cannot write the first key to {}{why}; none was made", self.path.display());
        Error::new(Kind::Unavailable, message)
    }
}

fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(ending);
    name.into()
}

fn write(path: &Path, secret: &Secret) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    writeln!(file, "{}", secret.reveal())?;
    file.sync_all()
}

/// Renames a file to a name that nothing has, for good.
fn move_to(from: &Path, to: &Path) -> io::Result<()> {
    match rename::without_replacing(from, to) {
        Err(error) if error.kind() == ErrorKind::Unsupported => {
            std::fs::hard_link(from, to)?;
            std::fs::remove_file(from)?;
        }
        moved => moved?,
    }
    let folder = to.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()
}

/// The first key in this file, if it is a file of this user that nobody else can read.
fn own_secret(path: &Path) -> Option<Secret> {
    let found = path.symlink_metadata().ok()?;
    let is_own = found.is_file() && found.uid() == rustix::process::geteuid().as_raw() && found.mode() & OTHERS == 0;
    if !is_own || found.len() > MAX_BYTES {
        return None;
    }
    let mut text = String::new();
    File::open(path).ok()?.take(MAX_BYTES).read_to_string(&mut text).ok()?;
    Secret::parse(text.trim()).ok().filter(Secret::is_first)
}
