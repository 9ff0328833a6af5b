//! Opening what a token is of, and what guards' verbs ask of its record.

use super::queue::Target;
use super::{coordinator, of_token};
use crate::args::Common;
use crate::config::{Settings, Source};
use leasehold_core::guard::{self, Guard, HighWater};
use leasehold_core::{
    Coordinator, Error, Event, Kind, Remedy, Resolver, Result, Right, StoredLineage, Token, TokenState,
};
use leasehold_work::Tokens;
use leasehold_work::spool::{Presence, Spool};
use std::path::{Path, PathBuf};

/// Where `work` tells its command which queue its item is of.
pub const QUEUE: &str = "LEASEHOLD_QUEUE";

/// What a token is of, opened.
pub struct Opened {
    pub tokens: Tokens,
    /// The store, for a lease or an item in it.
    pub coordinator: Option<Coordinator>,
    source: Source,
}

impl Opened {
    /// Looks the token up in what was opened.
    pub async fn resolve(&self, token: &Token) -> Result<leasehold_core::Resolved> {
        self.tokens.resolve(token).await
    }

    /// Counts a refusal. Leases have counters, items have histories.
    pub async fn count_fenced(&self, token: &Token) {
        if let (Some(coordinator), Right::Lease) = (&self.coordinator, Right::of(&token.lease)) {
            let _ = coordinator.count(&token.lease, Event::Fenced).await;
        }
    }
}

/// Opens what the token is of. Nothing is made: what is missing has not granted it.
pub async fn open(common: &Common, token: &Token) -> Result<Opened> {
    if Right::of(&token.lease) == Right::SpoolFile {
        let tokens = Tokens::default();
        let (tokens, source) = match named_spool(common)? {
            Some((path, source)) => (tokens.with_spool(existing_spool(&path)?), source),
            None => (tokens, Source::Default),
        };
        return Ok(Opened { tokens, coordinator: None, source });
    }
    let settings = Settings::gather(common)?;
    let coordinator = of_token(&settings).await?;
    let tokens = in_store(coordinator.clone(), &settings);
    Ok(Opened { tokens, coordinator: Some(coordinator), source: settings.store.source })
}

/// Tokens of this store's leases and items, with the store named as people know it.
pub fn in_store(coordinator: Coordinator, settings: &Settings) -> Tokens {
    let place = format!("store `{}` (from {})", settings.store.value, settings.store.source);
    Tokens::new(coordinator).calling_the_store(place)
}

/// The coordinator for a fence that is kept in the store, whatever the token is of.
pub async fn fence_store(settings: &Settings, token: &Token) -> Result<Coordinator> {
    match Right::of(&token.lease) {
        Right::Lease | Right::Item => of_token(settings).await,
        Right::SpoolFile => coordinator(settings).await,
    }
}

/// The spool that was named: by --store, or in the environment that `work` set.
fn named_spool(common: &Common) -> Result<Option<(PathBuf, Source)>> {
    let variable = |name: &'static str| std::env::var(name).ok().map(|text| (text, Source::Environment(name)));
    let named = [common.store.clone().map(|text| (text, Source::Flag)), variable("LEASEHOLD_STORE"), variable(QUEUE)];
    for (text, source) in named.into_iter().flatten() {
        if let Ok(Target::Spool(path)) = Target::parse(&text) {
            return Ok(Some((path, source)));
        }
    }
    Ok(None)
}

/// Completes the command that heals an error: it goes to the store or the spool that this command used.
pub fn in_what_was_used(common: &Common, error: Error) -> Error {
    let error = match named_spool(common) {
        Ok(Some((path, _))) => error.in_store(&format!("spool:{}", path.display())),
        _ => error,
    };
    match Settings::gather(common) {
        Ok(settings) => error.in_store(&settings.store.value.to_string()),
        Err(_) => error,
    }
}

/// A spool that is there.
pub fn existing_spool(path: &Path) -> Result<Spool> {
    if Presence::at(path)? == Presence::Spool {
        return Spool::open(path);
    }
    let message = format!("there is no spool at `{}`; is this the spool that the token came from?", path.display());
    Err(Error::new(Kind::Unavailable, message))
}

/// Refuses a token that its record knows to be stale before anything is written: the guard may not have heard of it
/// yet. Best effort, for a guard stands without any store; the guard decides.
pub async fn overtaken(common: &Common, guard: &dyn Guard, token: &Token) -> Result<()> {
    let Ok(opened) = open(common, token).await else { return Ok(()) };
    let Ok(found) = opened.resolve(token).await else { return Ok(()) };
    let elsewhere = matches!(found.state, TokenState::Missing | TokenState::OtherLineage { .. });
    // A store that nobody named may have nothing to do with the token.
    if elsewhere && opened.source == Source::Default {
        return Ok(());
    }
    // The resource knows this very lease, and the store does not: it is the store that has lost it.
    if found.state == TokenState::Missing
        && let Ok(Some(HighWater { lease, lineage, epoch, .. })) = guard.high_water().await
        && (&lease, lineage) == (&token.lease, token.lineage)
    {
        let message = format!(
            "store regressed: resource=`{}` has seen epoch {epoch} of {}, which {} does not know at all: name the store that \
             the token came from; if that is this one and it was lost, stop the job first",
            guard.resource(),
            token.lease,
            found.place,
        );
        let remedy = Remedy::lost(&guard.resource(), &lease, epoch, lineage, StoredLineage::Nothing);
        return Err(Error::new(Kind::Regressed, message).with_remedy(remedy));
    }
    let checked = found.may_write(token, &guard.resource());
    if checked.as_ref().is_err_and(|e| e.kind() == Kind::Fenced) {
        opened.count_fenced(token).await;
    }
    checked
}

/// Turns a guard's refusal into what is really wrong: if the record still says that this token is the newest, then it
/// is not the token that is stale but the store that went back in time. Counts real refusals.
pub async fn explain(common: &Common, guard: &dyn Guard, token: &Token, error: Error) -> Error {
    if error.kind() != Kind::Fenced {
        return error;
    }
    let Ok(opened) = open(common, token).await else { return error };
    if let Ok(found) = opened.resolve(token).await
        && found.is_newest()
        && let Ok(Some(high)) = guard.high_water().await
        && high.epoch > token.epoch
    {
        return guard::regressed(&guard.resource(), &token.lease, high.epoch);
    }
    opened.count_fenced(token).await;
    error
}
