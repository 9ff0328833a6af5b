//! What a command works with: its settings, the store, and how it prints.
//!
//! Promise: settings are read once and the store is opened once, when they are first needed. Verbs that need a
//! lease, a token or a queue get it here. Non-promise: a failure is not remembered; the next request tries again.

use crate::args::Common;
use crate::config::{Flags, Setting, Settings, Source, variable};
use crate::exit::Exit;
use crate::notify::{Notifier, location};
use crate::run_context::RunContext;
use crate::{log, output, verbs};
use leasehold::Leases;
use leasehold_core::measured::{Measured, Requests};
use leasehold_core::migration;
use leasehold_core::relocation::Relocation;
use leasehold_core::{
    Coordinator, Epoch, Error, Event, FencedWrite, History, Inspection, Kind, LeaseName, Ownership, Resolved, Resolver,
    Result, Token, TokenKind,
};
use leasehold_stores::StoreUrl;
use leasehold_work::Tokens;
use leasehold_work::notify::Channel;
use leasehold_work::queue::{Queue, QueueName};
use leasehold_work::spool::{Presence, Spool};
use rustix::fs::Access;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::OnceLock;
use tokio::sync::OnceCell;

/// Where `run` and `work` tell their command by which token it writes.
const TOKEN: &str = "LEASEHOLD_TOKEN";
/// The variable by which `work` tells its command which queue its item belongs to.
pub const QUEUE: &str = "LEASEHOLD_QUEUE";

/// What one run of the command shares: its settings, and the store, which is opened once.
#[derive(Debug)]
pub struct Context {
    pub common: Common,
    flags: Flags,
    settings: OnceLock<Settings>,
    coordinator: OnceCell<Coordinator>,
    /// How long the store took to answer.
    pub requests: Requests,
}

impl Context {
    pub fn new(common: Common, flags: Flags) -> Self {
        let requests = Requests::default();
        Context { common, flags, settings: OnceLock::new(), coordinator: OnceCell::const_new(), requests }
    }

    /// The settings in force.
    pub fn settings(&self) -> Result<&Settings> {
        match self.settings.get() {
            Some(settings) => Ok(settings),
            None => self.read_settings().map(|settings| {
                log::follow(&settings);
                self.settings.get_or_init(|| settings)
            }),
        }
    }

    /// The settings as flags, environment and files have them by now.
    pub fn read_settings(&self) -> Result<Settings> {
        Settings::gather_with(&self.common, &self.flags)
    }

    /// The coordinator on the store that the settings name, which is made if it is missing.
    pub async fn coordinator(&self) -> Result<&Coordinator> {
        let opening = || async {
            let settings = self.settings()?;
            let opened = coordinator(settings).await.map_err(|error| not_opened(&settings.store, error))?;
            let store = opened.store().clone();
            let timed = Measured::new(store, self.requests.clone());
            Ok(Coordinator::new(Arc::new(timed)).with_retention(settings.retention()))
        };
        self.coordinator.get_or_try_init(opening).await
    }

    /// The same for those who only look, or ask for what a missing store cannot have: they make none.
    pub async fn existing(&self) -> Result<Option<&Coordinator>> {
        if self.settings()?.store.value.is_missing() { Ok(None) } else { self.coordinator().await.map(Some) }
    }

    /// The same for those whose answer would be out of date in a store whose leases have moved, or whose change would be of no
    /// use there: an error names the new one, and what to do. What cannot be looked at is no reason.
    pub async fn in_use(&self, what: &str) -> Result<Option<&Coordinator>> {
        let Some(coordinator) = self.existing().await? else { return Ok(None) };
        match moved_to(coordinator).await {
            Some(url) => Err(Error::new(Kind::Moved, format!("this store has moved to `{url}`; {what}"))),
            None => Ok(Some(coordinator)),
        }
    }

    /// The same for those who bring a token: a store that is missing has not granted it.
    pub async fn granting(&self) -> Result<&Coordinator> {
        let store = &self.settings()?.store;
        self.existing().await?.ok_or_else(|| {
            let (store, source) = (&store.value, &store.source);
            let message =
                format!("there is no store at `{store}` (from {source}); is this the store that the token came from?");
            Error::new(Kind::Unavailable, message)
        })
    }

    /// The coordinator for a fence that is kept in the store, whatever the token is of.
    pub async fn fence_store(&self, token: &Token) -> Result<&Coordinator> {
        match TokenKind::of(&token.lease) {
            TokenKind::Lease | TokenKind::Item => self.granting().await,
            TokenKind::SpoolFile => self.coordinator().await,
        }
    }

    /// The token from the flag, or from the environment or the file that `run` set.
    pub fn token(&self, flag: Option<&str>) -> Result<Token> {
        let missing =
            "no token: run this inside `leasehold run`, or give --token with what `leasehold acquire` printed";
        self.token_or(flag, missing)
    }

    /// The same, with what to say if there is none.
    pub fn token_or(&self, flag: Option<&str>, missing: &str) -> Result<Token> {
        if let Some(text) = flag {
            return text.parse();
        }
        // What the command line names comes before the environment.
        if self.common.context.is_none()
            && let Some(token) = self.variable_token()?
        {
            return Ok(token);
        }
        match RunContext::named(self.common.context.as_deref())? {
            Some((context, _)) => context.token(),
            None => Err(Error::new(Kind::Invalid, missing)),
        }
    }

    /// The token from the environment that `run` set, without the file.
    pub fn variable_token(&self) -> Result<Option<Token>> {
        variable(TOKEN, "token", str::parse)
    }

    /// A record of a lease that somebody once held or operated on; a name nobody used is most likely a typing error.
    pub async fn lease(&self, name: &str) -> Result<Inspection> {
        let lease = LeaseName::new(name)?;
        if let Some(coordinator) = self.existing().await? {
            let inspection = coordinator.inspect(&lease).await?;
            if inspection.record != Ownership::default() {
                return Ok(inspection);
            }
        }
        Err(never_held(&lease))
    }

    /// Every transfer of a lease that is still known. What is missing is said.
    pub async fn history(&self, seen: &Inspection) -> Result<History> {
        let history = match self.existing().await? {
            Some(coordinator) => coordinator.history(&seen.lease, &seen.record).await?,
            None => History { transfers: seen.record.transfers.clone(), damaged: Vec::new() },
        };
        history.damaged.iter().for_each(|error| output::warn(&error.to_string()));
        Ok(history)
    }

    /// Opens what the token is of. Nothing is made: what is missing has not granted it.
    pub async fn open_token(&self, token: &Token) -> Result<OpenToken> {
        if TokenKind::of(&token.lease) == TokenKind::SpoolFile {
            let tokens = Tokens::default();
            let (tokens, source) = match self.named_spool() {
                Some((path, source)) => (tokens.with_spool(existing_spool(&path)?), source),
                None => (tokens, Source::Default),
            };
            return Ok(OpenToken { token: token.clone(), tokens, coordinator: None, source, notifier: None });
        }
        let coordinator = self.granting().await?.clone();
        let (tokens, source) = (self.tokens(&coordinator)?, self.settings()?.store.source.clone());
        // A write is not refused only because a message about it cannot be sent.
        let rules = self.settings()?.notify.read_each().0;
        let notifier = Notifier::new(&coordinator, rules, location(self.settings()?));
        Ok(OpenToken { token: token.clone(), tokens, coordinator: Some(coordinator), source, notifier })
    }

    /// Tokens of this store's leases and items, with the store named as people know it.
    pub fn tokens(&self, coordinator: &Coordinator) -> Result<Tokens> {
        let store = &self.settings()?.store;
        let location = format!("store `{}` (from {})", store.value, store.source);
        Ok(Tokens::new(coordinator.clone()).with_store_name(location))
    }

    /// The spool that was named: by --store, or in the environment that `work` set.
    fn named_spool(&self) -> Option<(PathBuf, Source)> {
        let variable = |name: &'static str| std::env::var(name).ok().map(|text| (text, Source::Environment(name)));
        let flag = self.common.store.clone().map(|text| (text, Source::Flag));
        let context = RunContext::named(self.common.context.as_deref()).ok().flatten();
        let context = context.and_then(|(context, source)| Some((context.queue?, source)));
        let named = [flag, variable("LEASEHOLD_STORE"), variable(QUEUE), context].into_iter().flatten();
        named.into_iter().find_map(|(text, source)| match Target::parse(&text) {
            Ok(Target::Spool(path)) => Some((path, source)),
            _ => None,
        })
    }

    /// Opens a queue, and makes what is missing.
    pub async fn queue(&self, target: &Target) -> Result<Open> {
        let path = match target {
            Target::Queue(name) => {
                return Ok(Open::Queue(Queue::new(self.coordinator().await?.store().clone(), name.clone())));
            }
            Target::Spool(path) => path,
        };
        let is_missing = self.missing(target)?.is_some();
        let spool = Spool::open(path)?;
        if is_missing {
            let shown = path.display();
            output::warn(&format!(
                "made a new spool at `{shown}`; if other machines share it, see that it is mounted here"
            ));
        }
        Ok(Open::Spool(spool))
    }

    /// The same for those who change what is there: in a store that has moved there is nothing to change.
    pub async fn queue_in_use(&self, target: &Target) -> Result<Open> {
        if let (Target::Queue(_), None) = (target, self.missing(target)?) {
            self.in_use("use that one, nothing was changed here").await?;
        }
        self.existing_queue(target).await
    }

    /// The same for those who ask for what a missing one cannot have.
    pub async fn existing_queue(&self, target: &Target) -> Result<Open> {
        match self.missing(target)? {
            Some(what) => Err(Error::new(Kind::Invalid, format!("there is no {what}"))),
            None => self.queue(target).await,
        }
    }

    /// What has to be made before there can be anything in a queue, if it is not there.
    pub fn missing(&self, target: &Target) -> Result<Option<String>> {
        Ok(match target {
            Target::Queue(_) => {
                let store = &self.settings()?.store.value;
                store.is_missing().then(|| format!("store at `{store}`"))
            }
            Target::Spool(path) => {
                (Presence::at(path)? != Presence::Spool).then(|| format!("spool at `{}`", path.display()))
            }
        })
    }

    /// Prints data: JSON if that was asked for, text otherwise.
    pub fn print(&self, json: impl FnOnce() -> Value, text: impl FnOnce() -> String) -> Result<Exit> {
        if self.common.json {
            output::json(&json())?
        } else {
            output::print(&text())?
        }
        Ok(Exit::Done)
    }

    /// Prints JSON if that was asked for, and nothing otherwise.
    pub fn print_json(&self, json: impl FnOnce() -> Value) -> Result<Exit> {
        self.print(json, String::new)
    }

    /// Prints JSON if that was asked for, and says it to people otherwise.
    pub fn tell(&self, json: impl FnOnce() -> Value, text: impl FnOnce() -> String) -> Result<Exit> {
        if self.common.json {
            output::json(&json())?
        } else {
            output::say(&text())
        }
        Ok(Exit::Done)
    }

    /// Completes the command that heals an error: it goes to the store or the spool that this command used.
    pub fn complete(&self, error: Error) -> Error {
        let error = match self.named_spool() {
            Some((path, _)) => error.in_store(&format!("spool:{}", path.display())),
            None => error,
        };
        let Ok(settings) = self.settings() else { return error };
        let is_of_store = self.requests.failure().is_some_and(|failure| error.to_string().contains(&failure));
        let error = if is_of_store { error.with_origin(named_by(&settings.store.source)) } else { error };
        error.in_store(&settings.store.value.to_string())
    }
}

/// Who named the store, behind an error of it: there may be several places that do.
fn named_by(source: &Source) -> String {
    match source {
        Source::Flag => "store from --store".to_owned(),
        Source::Default => "this user's own store; no other is named".to_owned(),
        source => format!("store from {source}"),
    }
}

/// The error of a store that cannot be opened. Where nobody named one and this user can have none, trying again does not help.
fn not_opened(store: &Setting<StoreUrl>, error: Error) -> Error {
    let is_writable = |folder: &Path| folder.is_dir() && rustix::fs::access(folder, Access::WRITE_OK).is_ok();
    let file = store.value.path().filter(|file| !file.exists());
    let is_impossible = file.and_then(Path::parent).is_some_and(|folder| !is_writable(folder));
    if store.source == Source::Default && is_impossible {
        let message = "this user's own store cannot be made; give --store or LEASEHOLD_STORE";
        return Error::new(Kind::Unsupported, message).with_source(error);
    }
    error.with_origin(named_by(&store.source))
}

/// What a token is of, opened.
pub struct OpenToken {
    token: Token,
    pub tokens: Tokens,
    /// The store, for a lease or an item in it.
    pub coordinator: Option<Coordinator>,
    /// Who named the store or the spool.
    pub source: Source,
    /// Notifies about refused writes; none if nothing is configured.
    notifier: Option<Notifier>,
}

impl OpenToken {
    /// Looks the token up in what was opened.
    pub async fn resolve(&self) -> Result<Resolved> {
        self.tokens.resolve(&self.token).await
    }

    /// Counts a refusal, and records where it was. `seen` is the newer epoch, if it is known. Leases have counters, items have
    /// histories.
    pub async fn count_fenced(&self, resource: &str, seen: Option<Epoch>) {
        if let (Some(coordinator), TokenKind::Lease) = (&self.coordinator, TokenKind::of(&self.token.lease)) {
            let Token { lease, epoch, .. } = &self.token;
            let _ = match seen {
                Some(seen) => {
                    let by = verbs::operate::by(None).ok();
                    coordinator.count_fenced(lease, &FencedWrite::new(resource, *epoch, seen, by)).await
                }
                None => coordinator.count(lease, Event::Fenced).await,
            };
            if let Some(notifier) = &self.notifier {
                notifier.refused(&self.token.lease).await;
            }
        }
    }
}

/// The queue or spool that a name on the command line stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// A queue in the store.
    Queue(QueueName),
    /// A folder of files, by its path.
    Spool(PathBuf),
}

impl Target {
    pub fn parse(text: &str) -> Result<Self> {
        let Some(path) = text.strip_prefix("spool:") else { return Ok(Target::Queue(text.parse()?)) };
        let refuse = |what: &str| Error::invalid("queue name", text, format!("{what}; use spool:/path/to/folder"));
        if path.is_empty() || path.chars().any(char::is_control) {
            return Err(refuse("the path is empty, or has a control character"));
        }
        if path == "~" || path.starts_with("~/") {
            return Err(refuse("`~` is not expanded here"));
        }
        let absolute = std::path::absolute(path).map_err(|e| refuse("the path cannot be resolved").with_source(e))?;
        Ok(Target::Spool(absolute))
    }

    /// The folder of a spool.
    pub fn spool(text: &str) -> Result<PathBuf> {
        match Target::parse(text)? {
            Target::Spool(path) => Ok(path),
            Target::Queue(_) => Err(Error::invalid("spool", text, "use spool:/path/to/folder")),
        }
    }

    /// Refuses the queues in which our own notifications wait, to those who would add to them or take from them.
    pub fn check_ours(&self, what: &str) -> Result<()> {
        match self {
            Target::Queue(name) if Channel::is_reserved(name) => {
                let why = format!("its items are leasehold's own notifications: look at them, but do not {what} it");
                Err(Error::invalid("queue name", name, why))
            }
            _ => Ok(()),
        }
    }

    /// For another process's command line.
    pub fn portable(&self) -> String {
        match self {
            Target::Queue(name) => name.to_string(),
            Target::Spool(path) => format!("spool:{}", path.display()),
        }
    }
}

/// A queue or a spool that is open.
pub enum Open {
    /// A queue in the store.
    Queue(Queue),
    /// A folder of files.
    Spool(Spool),
}

/// Runs the same code for a queue and for a spool.
macro_rules! with_backlog {
    ($open:expr, $backlog:ident => $does:expr) => {
        match $open {
            $crate::context::Open::Queue($backlog) => $does,
            $crate::context::Open::Spool($backlog) => $does,
        }
    };
}
pub(crate) use with_backlog;

/// The coordinator on the store that these settings name, which is made if it is missing.
pub async fn coordinator(settings: &Settings) -> Result<Coordinator> {
    Ok(open_store(&settings.store.value).await?.with_retention(settings.retention()))
}

/// The coordinator on this store, which is made if it is missing.
pub async fn open_store(url: &StoreUrl) -> Result<Coordinator> {
    let missing = url.scheme() == "dir" && url.is_missing();
    let coordinator = Leases::open(url).await?.coordinator().clone();
    if missing {
        // Below a mount point whose share is not mounted, this is the moment at which a fleet splits in two.
        output::warn(&format!("made a new store at `{url}`; if other machines share it, see that it is mounted here"));
    }
    Ok(coordinator)
}

/// The store that everything here has moved to, if it has; none also if that is unknown.
pub async fn moved_to(coordinator: &Coordinator) -> Option<String> {
    let seen = migration::look(coordinator.store().as_ref()).await.ok()?;
    let state = seen.marks.leaving.map(|mark| mark.state)?;
    matches!(state, Relocation::Moved { .. }).then(|| state.address().as_str().to_owned())
}

/// A spool that is there.
pub fn existing_spool(path: &Path) -> Result<Spool> {
    if Presence::at(path)? == Presence::Spool {
        return Spool::open(path);
    }
    let message = format!("there is no spool at `{}`; is this the spool that the token came from?", path.display());
    Err(Error::new(Kind::Unavailable, message))
}

/// The error about a name that no lease of the store has.
pub fn never_held(lease: &LeaseName) -> Error {
    let parts: Vec<&str> = lease.as_str().split('/').collect();
    let message = match (TokenKind::of(lease), &parts[..]) {
        (TokenKind::Item, [_, queue, id]) => {
            format!("`{lease}` is an item of a queue; see `leasehold queue show {queue} {id}`")
        }
        (TokenKind::SpoolFile, [_, id]) => {
            format!("`{lease}` is an item of a spool; see `leasehold queue show spool:PATH {id}`")
        }
        _ => format!("nobody has ever held a lease `{lease}`; `leasehold ls` lists the leases there are"),
    };
    Error::new(Kind::Invalid, message)
}
