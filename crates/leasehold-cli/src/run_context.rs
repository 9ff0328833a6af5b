//! The file in which a command under a lease, and what it starts, finds that lease: `LEASEHOLD_CONTEXT`.
//!
//! Hosts of agents start hooks and MCP servers with few of their variables. This one survives their filters, and names a file
//! that has the rest: the store, the token, and until when the lease is trusted.
//!
//! Promise: only this user can read it; each renewal replaces it as a whole; it goes when the command has ended; it has no
//! password, but says where that is. It is read only where the variable or `--context` names it, and never if somebody else
//! could have written it. Non-promise: it does not outlive its run, and it is a copy: the store decides.

use crate::config::{Setting, Settings, Source, is_unexpanded};
use crate::private_folder::{PrivateFolder, sweep};
use leasehold_core::clock::{Clock, Moment, SystemClock};
use leasehold_core::{Error, Kind, LeaseName, Nonce, Result, Slot, Token};
use leasehold_stores::StoreUrl;
use leasehold_system::host::boot_id;
use leasehold_work::schedule::slot_text;
use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The variable that names the file.
pub const VARIABLE: &str = "LEASEHOLD_CONTEXT";
const NAME: &str = "context.json";
/// The form of the file that is written and read.
const VERSION: u32 = 1;
/// More than the longest names and URLs together.
const MAX_BYTES: u64 = 64 * 1024;

/// What a run tells those within it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunContext {
    version: u32,
    /// The store's address, without a password.
    store: String,
    /// Where the address with its password is, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    secret: Option<Secret>,
    pub lease: LeaseName,
    epoch: u64,
    token: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot: Option<String>,
    /// The queue, or the spool, that the item is of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    pub idempotency_key: String,
    trusted: Trusted,
}

/// Who knows the password.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Secret {
    /// This variable has the whole address.
    Environment(String),
    /// This file of settings has it.
    File(PathBuf),
}

/// Until when the lease was trusted when the file was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Trusted {
    /// The boot of the machine whose clock it is.
    boot: Option<String>,
    /// Nanoseconds since then, on the clock that counts suspended time.
    until_ns: u64,
}

impl RunContext {
    /// What there is to tell of a grant.
    pub fn new(store: &Setting<StoreUrl>, token: &Token, slot: Option<Slot>, idempotency_key: String) -> Self {
        let url = &store.value;
        let has_secret = url.to_string() != url.portable();
        let secret = has_secret.then(|| match &store.source {
            Source::File(path) => Secret::File(path.clone()),
            // `run` gives it to its command in full.
            _ => Secret::Environment("LEASEHOLD_STORE".into()),
        });
        RunContext {
            version: VERSION,
            store: url.to_string(),
            secret,
            lease: token.lease.clone(),
            epoch: token.epoch.get(),
            token: token.wire(),
            slot: slot.map(slot_text),
            queue: None,
            idempotency_key,
            trusted: Trusted { boot: boot_id(), until_ns: 0 },
        }
    }

    /// What there is to tell of an item of a queue.
    pub fn of_item(store: &StoreUrl, queue: &str, token: &Token) -> Self {
        let store = Setting { value: store.clone(), source: Source::Default };
        let context = RunContext::new(&store, token, None, token.lease.to_string());
        RunContext { queue: Some(queue.to_owned()), ..context }
    }

    /// The file that the flag names, or else the variable; none if neither does.
    pub fn named(flag: Option<&Path>) -> Result<Option<(Self, Source)>> {
        let is_set =
            |path: &OsString| !path.is_empty() && !path.to_str().is_some_and(|text| is_unexpanded(text, VARIABLE));
        let variable = std::env::var_os(VARIABLE).filter(is_set).map(PathBuf::from);
        let (path, source) = match (flag, &variable) {
            (Some(path), _) => (path, Source::Flag),
            (None, Some(path)) => (path.as_path(), Source::Environment(VARIABLE)),
            (None, None) => return Ok(None),
        };
        Self::read(path).map(|context| Some((context, source)))
    }

    fn read(path: &Path) -> Result<Self> {
        let wrong = |what: String| {
            let message = format!("cannot use the context of a run, `{}`: {what}", path.display());
            Error::new(Kind::Invalid, message)
        };
        let cannot = |e: std::io::Error| match e.kind() {
            std::io::ErrorKind::NotFound => wrong("it is not there; has its run ended?".into()),
            _ => wrong("it cannot be read".into()).with_source(e),
        };
        // A pipe would be waited for, and a link may lead anywhere.
        let flags = (OFlags::NONBLOCK | OFlags::NOFOLLOW).bits() as i32;
        let file = File::options().read(true).custom_flags(flags).open(path).map_err(cannot)?;
        let metadata = file.metadata().map_err(cannot)?;
        let me = rustix::process::geteuid().as_raw();
        let others = Mode::WGRP.as_raw_mode() | Mode::WOTH.as_raw_mode();
        if !metadata.is_file() {
            return Err(wrong("it is not a plain file".into()));
        }
        if metadata.uid() != me && metadata.uid() != 0 || metadata.mode() & others != 0 {
            return Err(wrong("somebody else could have written it".into()));
        }
        let mut bytes = Vec::new();
        file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(cannot)?;
        if bytes.len() as u64 > MAX_BYTES {
            return Err(wrong(format!("it has more than {MAX_BYTES} bytes")));
        }
        let context: RunContext = serde_json::from_slice(&bytes).map_err(|e| wrong(format!("it is damaged ({e})")))?;
        if context.version != VERSION {
            return Err(wrong(format!("it is of version {}, and this program reads {VERSION}", context.version)));
        }
        let token = context.token().map_err(|e| wrong("its token is none".into()).with_source(e))?;
        if token.lease != context.lease || token.epoch.get() != context.epoch {
            return Err(wrong("its token is of another lease".into()));
        }
        Ok(context)
    }

    pub fn token(&self) -> Result<Token> {
        self.token.parse()
    }

    /// The store's address, with its password if it has one.
    pub fn store(&self) -> Result<StoreUrl> {
        let address = match &self.secret {
            None => Some(self.store.clone()),
            Some(Secret::Environment(name)) => std::env::var(name).ok(),
            Some(Secret::File(path)) => {
                let url = Settings::store_of(path)?;
                let other = format!("`{}` names another store than that of the run, `{}`", path.display(), self.store);
                return if url.to_string() == self.store { Ok(url) } else { Err(Error::new(Kind::Unsupported, other)) };
            }
        };
        match address.map(|text| text.parse::<StoreUrl>()) {
            Some(Ok(url)) if self.secret.is_none() || url.to_string() == self.store => Ok(url),
            Some(Err(error)) => Err(error.with_origin("store, from the context of a run")),
            _ => {
                let message = format!(
                    "the password of `{}` is in LEASEHOLD_STORE, which is not set here; let it through to this program, or put \
                     `store` into a leasehold.toml",
                    self.store
                );
                Err(Error::new(Kind::Unsupported, message))
            }
        }
    }

    /// Whether the lease is still trusted by what was known when the file was written; no store is asked.
    pub fn is_trusted(&self) -> bool {
        let same_boot = self.trusted.boot.is_some() && self.trusted.boot == boot_id();
        same_boot && SystemClock.now() < Moment::from_nanos(self.trusted.until_ns)
    }
}

/// The file of a run that is under way. Dropped, it is removed.
#[derive(Debug)]
pub struct ContextFile {
    path: PathBuf,
    context: RunContext,
    /// Its own, if it has one.
    _folder: Option<PrivateFolder>,
}

impl ContextFile {
    /// A file in a folder of its own, which goes with it. If it cannot be made, the run continues without it and logs a warning.
    pub fn alone(context: RunContext) -> Option<Self> {
        let made = PrivateFolder::new().and_then(|folder| {
            let file = ContextFile { path: folder.file(NAME), context, _folder: Some(folder) };
            match (file.path.to_str(), file.write(&file.path.with_extension("first"))) {
                (None, _) => {
                    Err(Error::new(Kind::Unavailable, "the folder for temporary files has a name that is not text"))
                }
                (_, Err(error)) => Err(Error::unavailable("it cannot be written", error)),
                (Some(_), Ok(())) => Ok(file),
            }
        });
        made.inspect_err(|error| tracing::warn!("{VARIABLE} cannot be set for the command: {error}")).ok()
    }

    /// A file in a folder that is there.
    pub fn within(folder: &PrivateFolder, context: RunContext) -> Self {
        ContextFile { path: folder.file(NAME), context, _folder: None }
    }

    /// What the variable is set to: nothing without a file, so that an outer run's is not taken for it.
    pub fn variable(file: Option<&Self>) -> (&'static str, String) {
        (VARIABLE, file.and_then(|file| file.path.to_str()).unwrap_or_default().to_owned())
    }

    /// Says until when the lease is trusted. What cannot be written leaves the former end, which is earlier.
    pub fn trust(&mut self, until: Moment) -> std::io::Result<()> {
        self.context.trusted.until_ns = until.as_nanos();
        let new = self.path.with_extension(Nonce::random().to_string());
        let written = self.write(&new).and_then(|()| std::fs::rename(&new, &self.path));
        if written.is_err() {
            let _ = std::fs::remove_file(&new);
        }
        written
    }

    fn write(&self, path: &Path) -> std::io::Result<()> {
        let text = serde_json::to_string_pretty(&self.context).map_err(std::io::Error::other)?;
        let mut file = File::options().write(true).create_new(true).mode(0o600).open(path)?;
        file.write_all(text.as_bytes())?;
        file.write_all(b"\n")
    }
}

impl Drop for ContextFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
        if self._folder.is_some() {
            // What runs left whose supervisor and dead-man were killed.
            sweep();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_not_in_it_and_where_it_is_is_said() {
        let token: Token = format!("job:3:{:032x}:{:032x}:0", 1, 2).parse().unwrap();
        let told = |store: &str, source: Source| {
            let store = Setting { value: store.parse().unwrap(), source };
            serde_json::to_value(RunContext::new(&store, &token, None, "key".into())).unwrap()
        };
        let flag = told("redis://ann:hunter2@db/0", Source::Flag);
        assert!(!flag.to_string().contains("hunter2"), "{flag}");
        assert_eq!(flag["secret"]["environment"], "LEASEHOLD_STORE");
        let file = told("redis://ann:hunter2@db/0", Source::File("/etc/leasehold.toml".into()));
        assert_eq!(file["secret"]["file"], "/etc/leasehold.toml");
        assert!(told("redis://db/0", Source::Flag).get("secret").is_none());
    }
}
