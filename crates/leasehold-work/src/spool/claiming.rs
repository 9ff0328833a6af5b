//! Claiming from a spool.
//!
//! Promise: claiming is one rename, and of any number only one succeeds; the epoch in the name rises with it. A lone
//! worker claims in order: it lists `ready/` before each claim while that is short, and often when it is long. It warns
//! once about a file that it may not claim, and skips it. Non-promise: with several workers the order is approximate.

use super::folder::{Spool, SpoolFolder, make, same_file, sync};
use super::listing::{Warnings, folders, listing};
use super::name::FileName;
use super::steps::SpoolStep;
use crate::queue::{Chores, DedupeKey, ItemId, Priority};
use leasehold_core::clock::{Clock, Moment, SystemClock};
use leasehold_core::{
    Epoch, Error, Jitter, Kind, Label, LeaseName, Live, Nonce, Result, Token, Ttl, format_duration, parse_duration,
};
use leasehold_system::undo::{Fix, is_disabled};
use leasehold_system::watch::PathWatch;
use std::collections::{HashMap, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The TTL of a worker whose folder's name has none.
pub(super) const DEFAULT_TTL: Duration = Duration::from_secs(900);
/// How many names are remembered from one listing.
const BATCH: usize = 16_384;
/// Listing at most this many files costs less than the claim that follows, so they are listed before each claim.
pub(super) const SHORT: usize = 1_024;
/// A longer listing is used for this many times the time that it took.
const LOOKS: u32 = 20;
/// How many listings one claim takes at most, while others claim everything that it saw.
const MAX_LOOKS: u32 = 100;
/// When a file that could not be claimed is tried again.
const REFUSED: Duration = Duration::from_secs(30);
/// How far the workers of a spool spread out at most.
const MAX_SPREAD: u64 = 64;
/// How often an idle worker lists, if the system does not notify it.
const POLL: Duration = Duration::from_secs(1);
/// How often a worker looks for what dead processes left behind.
const SWEEP: Duration = Duration::from_secs(300);

/// A claimed file.
#[derive(Debug, Clone)]
pub struct SpoolGrant {
    pub(super) name: FileName,
    pub(super) token: Token,
    pub(super) live: Live,
    path: PathBuf,
}

impl SpoolGrant {
    /// The name of its file, with the claim's epoch.
    pub fn name(&self) -> &FileName {
        &self.name
    }

    /// The proof to show to guards.
    pub fn token(&self) -> &Token {
        &self.token
    }

    /// How long a heartbeat lasts, and from when the item may be put back.
    pub fn live(&self) -> Live {
        self.live
    }

    /// The file with the payload.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// The name of a worker's folder: `LABEL-NONCE.TTL`.
pub(super) fn worker_name(label: &Label, nonce: Nonce, ttl: Ttl) -> String {
    let label: String =
        label.as_str().chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' }).collect();
    format!("{label}-{nonce}.{}", format_duration(ttl.get()))
}

/// The TTL in the name of a worker's folder: how long the worker may give no heartbeat.
pub(super) fn ttl_of(worker: &str) -> Duration {
    worker.rsplit_once('.').and_then(|(_, ttl)| parse_duration(ttl).ok()).unwrap_or(DEFAULT_TTL)
}

/// The lease name in an item's tokens.
pub(super) fn lease_of(id: &ItemId) -> Result<LeaseName> {
    LeaseName::new(format!("{}/{id}", LeaseName::SPOOL_ITEMS))
}

/// The item that a token belongs to.
pub(super) fn id_of(token: &Token) -> Result<ItemId> {
    match token.lease.as_str().split_once('/') {
        Some((LeaseName::SPOOL_ITEMS, id)) => id.parse(),
        _ => Err(Error::invalid("token", token, "it does not belong to an item of a spool")),
    }
}

impl Spool {
    /// The claim of a token, if its file is still where it was claimed.
    pub fn adopt(&self, token: &Token) -> Result<SpoolGrant> {
        let id = id_of(token)?;
        let nonce = token.nonce.to_string();
        for worker in folders(&self.path("claimed"))?.into_iter().filter(|worker| worker.contains(&nonce)) {
            let folder = SpoolFolder::Claimed(worker.clone());
            let found = self.items(&folder)?.into_iter().find(|name| name.id == id && name.epoch == token.epoch);
            if let Some(name) = found {
                let ttl = Ttl::new(ttl_of(&worker))?;
                let path = self.path(folder.path()).join(name.to_string());
                let asked = SystemClock.now();
                let silent = self.now()?.saturating_since(self.last_heartbeat(&path)?);
                let trust_until = asked + ttl.get().saturating_sub(silent) - self.grain();
                return Ok(SpoolGrant { name, token: token.clone(), live: Live { ttl, trust_until }, path });
            }
        }
        Err(self.stale(&id, token))
    }

    /// The error for a claim that is no longer in force.
    pub(super) fn stale(&self, id: &ItemId, token: &Token) -> Error {
        let held = token.epoch;
        let seen = self.find(id).map_or_else(
            |_| "it is gone".to_owned(),
            |item| match (item.name.epoch, item.folder.as_str()) {
                // Nobody came after it: it is over because it has ended, or ran out.
                (seen, folder) if seen == held && !matches!(item.folder, SpoolFolder::Claimed(_)) => {
                    format!("seen={seen}, the claim of this epoch is over, and the item is {folder}")
                }
                (seen, folder) => format!("seen={seen}, it is {folder} now"),
            },
        );
        Error::new(Kind::Fenced, format!("stale epoch refused: resource=`spool:{id}` held={held} {seen}"))
    }
}

/// Claims items of one spool, one after the other.
#[derive(Debug)]
pub struct SpoolClaimer {
    spool: Spool,
    worker: String,
    nonce: Nonce,
    ttl: Ttl,
    candidates: VecDeque<String>,
    listed: Option<LastListing>,
    refused: HashMap<String, Moment>,
    cleaned: Option<Moment>,
    swept: Option<Moment>,
    spread: u64,
    jitter: Jitter,
    warnings: Warnings,
}

/// A listing of `ready/`.
#[derive(Debug, Clone, Copy)]
struct LastListing {
    at: Moment,
    took: Duration,
    found: usize,
}

/// The result of an attempt to claim a file.
enum Taken {
    /// The file was claimed, and is ours.
    Ours(Box<SpoolGrant>),
    /// Another process was faster.
    Gone,
    /// Nobody may claim it, or this user may not.
    Refused(Error),
}

impl SpoolClaimer {
    /// A claimer for this worker, with a folder of its own.
    pub fn new(spool: Spool, label: &Label, ttl: Ttl) -> Result<Self> {
        if ttl.get() <= spool.grain() * 2 {
            let grain = format_duration(spool.grain());
            return Err(Error::invalid(
                "ttl",
                ttl,
                format!("this volume stamps files to {grain}; use more than twice that"),
            ));
        }
        spool.check_rights()?;
        let nonce = Nonce::random();
        let worker = worker_name(label, nonce, ttl);
        make(&spool.path("claimed").join(&worker), spool.rights())?;
        sync(&spool.path("claimed"))?;
        let jitter = Jitter::new(Nonce::random());
        Ok(SpoolClaimer {
            spool,
            worker,
            nonce,
            ttl,
            candidates: VecDeque::new(),
            listed: None,
            refused: HashMap::new(),
            cleaned: None,
            swept: None,
            spread: 1,
            jitter,
            warnings: Warnings::default(),
        })
    }

    /// Calls `warn` once for each file that is skipped because it cannot be claimed, put back or read.
    #[must_use]
    pub fn warning(mut self, warn: fn(&Error)) -> Self {
        self.warnings.by(warn);
        self
    }

    /// The spool that it claims from.
    pub fn spool(&self) -> &Spool {
        &self.spool
    }

    /// Waits for an item.
    pub async fn next(&mut self) -> Result<SpoolGrant> {
        let ready = self.spool.path("ready");
        let mut watch = PathWatch::entries(&ready).ok();
        loop {
            if let Some(grant) = self.claim()? {
                return Ok(grant);
            }
            let until = SystemClock.now() + POLL;
            match &mut watch {
                Some(watch) => tokio::select! {
                    () = SystemClock.sleep_until(until) => {}
                    _ = watch.changed() => {}
                },
                None => SystemClock.sleep_until(until).await,
            }
        }
    }

    /// Claims the first item that may be claimed, if there is one. It retries only while others claim what it saw.
    pub fn claim(&mut self) -> Result<Option<SpoolGrant>> {
        self.clean()?;
        let mut looks = 0;
        loop {
            if self.candidates.is_empty() || looks == 0 && self.is_stale() {
                self.list()?;
                looks += 1;
            }
            // A file server may still list files that are long gone.
            if self.candidates.is_empty() || looks > MAX_LOOKS {
                self.listed = None;
                return Ok(None);
            }
            let among = self.spread.min(self.candidates.len() as u64);
            let at = self.jitter.below(among) as usize;
            let Some(text) = self.candidates.remove(at) else { continue };
            match self.take(&text)? {
                Taken::Ours(grant) => {
                    self.spread = (self.spread / 2).max(1);
                    return Ok(Some(*grant));
                }
                Taken::Gone => self.spread = (self.spread * 2).min(MAX_SPREAD),
                Taken::Refused(error) => {
                    self.warnings.warn(&error);
                    self.refused.insert(text, SystemClock.now());
                }
            }
        }
    }

    /// This worker's share of the janitor's work.
    fn clean(&mut self) -> Result<()> {
        let now = SystemClock.now();
        let pause = (self.ttl.get() / 3).min(POLL);
        if self.cleaned.is_none_or(|cleaned| now >= cleaned + pause) {
            self.cleaned = Some(now);
            let Chores { foreign, troubles, .. } = self.spool.clean_urgent()?;
            foreign.iter().chain(&troubles).for_each(|error| self.warnings.warn(error));
            let last = foreign.into_iter().chain(troubles).last();
            last.filter(|_| is_disabled(Fix::JanitorErrorStopsTheSpool)).map_or(Ok(()), Err)?;
        }
        if self.swept.is_none_or(|swept| now >= swept + SWEEP) {
            self.swept = Some(now);
            let Chores { foreign, troubles, .. } = self.spool.clean()?;
            foreign.iter().chain(&troubles).for_each(|error| self.warnings.warn(error));
        }
        Ok(())
    }

    /// Whether to list again, because a more urgent item may have come. Listing takes a small part of the time.
    fn is_stale(&self) -> bool {
        self.listed.is_none_or(|last| {
            last.found <= SHORT || SystemClock.now() >= last.at + (last.took * LOOKS).max(Duration::from_millis(1))
        })
    }

    fn list(&mut self) -> Result<()> {
        let began = SystemClock.now();
        let ready = self.spool.path("ready");
        let all = listing(&ready)?;
        all.foreign(&ready).for_each(|error| self.warnings.warn(&error));
        let mut found = all.files;
        let count = found.len();
        self.refused.retain(|_, at| began < *at + REFUSED);
        if !self.refused.is_empty() {
            found.retain(|name| !self.refused.contains_key(name));
        }
        if found.len() > BATCH {
            found.select_nth_unstable(BATCH);
            found.truncate(BATCH);
        }
        found.sort_unstable();
        self.candidates = found.into();
        self.listed = Some(LastListing { at: began, took: SystemClock.now().saturating_since(began), found: count });
        Ok(())
    }

    fn take(&mut self, text: &str) -> Result<Taken> {
        let from = self.spool.path("ready").join(text);
        let parsed = FileName::parse(text);
        let mut name = match &parsed {
            Some(name) => name.raised(),
            None => match self.adopt_plain_file(text, &from)? {
                Some(name) => name.raised(),
                None => return Ok(Taken::Gone),
            },
        };
        let folder = self.spool.path(SpoolFolder::Claimed(self.worker.clone()).path());
        let mut path = folder.join(name.to_string());
        let mut asked = SystemClock.now();
        let claim = || self.spool.shift(&from, &path, SpoolStep::Claim, SpoolStep::SyncClaimed);
        let mut moved = claim();
        if matches!(moved, Ok(false)) && folder.symlink_metadata().is_err() {
            // It was not the file that was missing: a janitor removed this worker's folder, which had long been empty.
            make(&folder, self.spool.rights())?;
            sync(&self.spool.path("claimed"))?;
            asked = SystemClock.now();
            moved = claim();
        }
        match moved {
            Ok(true) => {}
            Ok(false) => return Ok(Taken::Gone),
            Err(error) if error.kind() == Kind::Unsupported => return Ok(Taken::Refused(error)),
            Err(error) => return Err(error),
        }
        if parsed.is_none() {
            // Another file of that name may have come since it was checked, and its key is not taken yet.
            let now = self.adopt_plain_file(text, &path)?.map(|now| now.raised());
            let differs = |now: &FileName| now.id.is_keyed() != name.id.is_keyed() || now.epoch > name.epoch;
            if let Some(now) = now.filter(differs) {
                let to = folder.join(now.to_string());
                if !self.spool.shift(&path, &to, SpoolStep::Claim, SpoolStep::SyncClaimed)? {
                    return Ok(Taken::Gone);
                }
                (path, name) = (to, now);
            }
        }
        let token = Token {
            lease: lease_of(&name.id)?,
            lineage: self.spool.lineage(),
            epoch: name.epoch,
            nonce: self.nonce,
            seq: 0,
        };
        let trust_until = asked + self.ttl.get() - self.spool.grain();
        let live = Live { ttl: self.ttl, trust_until };
        Ok(Taken::Ours(Box::new(SpoolGrant { name, token, live, path })))
    }

    /// A file that somebody put into `ready/` under a plain name: it becomes an item with that key. If the key is taken
    /// or the name is not a valid key, it gets an id of its own.
    fn adopt_plain_file(&self, text: &str, path: &Path) -> Result<Option<FileName>> {
        if !fs::symlink_metadata(path).is_ok_and(|m| m.is_file()) {
            return Ok(None);
        }
        let now = self.spool.now()?;
        // It gets the key unless another item has it, finished or not: one key, one item.
        let keyed = text.parse().ok().filter(|key: &DedupeKey| {
            let taken = self.spool.path("keys").join(key.as_str());
            fs::hard_link(path, &taken).is_ok() || same_file(path, &taken)
        });
        let id = keyed.as_ref().map_or_else(|| ItemId::fresh(now), ItemId::keyed);
        let epoch = if keyed.is_some() { self.spool.first_epoch()? } else { Epoch::ZERO };
        let (priority, most) = (Priority::default(), crate::queue::Attempts::default().most);
        Ok(Some(FileName { priority, due: now, id, tried: 0, most, epoch }))
    }
}

impl Drop for SpoolClaimer {
    fn drop(&mut self) {
        // Only if it is empty: items in it expire and are put back.
        let _ = fs::remove_dir(self.spool.path("claimed").join(&self.worker));
    }
}
