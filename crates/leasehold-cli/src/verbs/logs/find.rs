//! Finding the run that is meant, and the best copy of its output.

use super::Wanted;
use crate::context::{Context, Target};
use crate::output;
use crate::run_output::file::{self, Found, Stretch, is_being_written};
use crate::run_output::layout::{self, Named, RunFile, folder_of, spool_folder};
use crate::run_output::{Keeping, Size, files_in};
use leasehold_core::item::{QueueName, State};
use leasehold_core::{Coordinator, Kind, LeaseName, Result, Slot, Transfer};
use leasehold_work::output::{Ring, RunOutput, list};
use leasehold_work::queue::{ItemId, Queue};
use leasehold_work::schedule::Journals;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// How many items are looked for in the store to find which files are of its own.
const MAX_LOOKED_FOR: usize = 50;

pub struct Finder<'a> {
    pub context: &'a Context,
    pub keeping: Option<&'a Keeping>,
}

/// A run, and what is available of its output.
pub struct Chosen {
    pub name: String,
    pub item: Option<String>,
    pub epoch: u64,
    /// Whom to ask whether it is still running; none for an item of a spool.
    pub held: Option<HeldBy>,
    pub slot: Option<Slot>,
    pub host: Option<String>,
    /// Whether it is still running, and whether that is on this machine.
    pub runs: bool,
    pub runs_here: bool,
    pub record: Option<RunOutput>,
    pub content: Content,
    /// Where the file of a run on this machine is, or will be.
    pub path: Option<PathBuf>,
}

/// What a run that is still running runs under.
pub enum HeldBy {
    Lease(LeaseName),
    Item(QueueName, ItemId),
}

/// An attempt that is still running.
struct Live {
    epoch: u64,
    host: String,
    nonce: String,
    lineage: String,
}

/// Where it was found.
pub enum Content {
    File(PathBuf, Vec<Stretch>),
    Bucket(String, Vec<Stretch>),
    Tail(String),
    None,
}

/// A file of this machine.
#[derive(Debug, Clone)]
struct Local {
    path: PathBuf,
    item: Option<String>,
    epoch: u64,
    nonce: String,
    lineage: Option<String>,
}

impl Finder<'_> {
    /// None if there is neither such a lease nor such a run.
    pub async fn of_lease(&self, lease: &LeaseName, wanted: Wanted) -> Result<Option<Chosen>> {
        let Some(coordinator) = self.context.existing().await? else { return Ok(None) };
        let seen = coordinator.inspect(lease).await?;
        let Some(lineage) = seen.record.lineage else { return Ok(None) };
        let history = self.context.history(&seen).await?;
        let runs: Vec<&Arc<Transfer>> = history.transfers.iter().filter(|transfer| transfer.to.is_some()).collect();
        let records = self.records(coordinator, &Ring::of_lease(lease, lineage, 1)).await;
        // Another store's lease may have the same name, and the same epochs.
        let is_ours = |local: &Local| {
            runs.iter().any(|run| run.to.as_ref().is_some_and(|to| to.nonce().to_string() == local.nonce))
        };
        let locals: Vec<Local> = self.locals(&folder_of(lease, None).0).into_iter().filter(is_ours).collect();
        let live =
            seen.record.live_tenure(seen.now).map(|tenure| (seen.record.epoch.get(), tenure.holder.host().to_owned()));
        let here = leasehold_system::host::name();
        let known = records.iter().map(|record| record.epoch.get()).chain(locals.iter().map(|local| local.epoch));
        let epoch = match wanted {
            Wanted::Epoch(epoch) => Some(epoch),
            Wanted::Slots(first, last) => {
                let claimed = runs.iter().map(|run| (run.slot, run.epoch.get()));
                let all = claimed.chain(records.iter().map(|record| (record.slot, record.epoch.get())));
                match all.filter(|(slot, _)| slot.is_some_and(|slot| (first..=last).contains(&slot))).max() {
                    Some((_, epoch)) => Some(epoch),
                    // A run that an operator asked for claims no slot; the journal names one for it.
                    None => journaled(coordinator, lease, first, last).await?,
                }
            }
            Wanted::Newest => match (&live, known.max()) {
                (Some((epoch, host)), newest) if *host == here || newest.is_none() => Some(*epoch),
                (Some((epoch, host)), newest) => {
                    output::say(&format!("`{lease}`, epoch {epoch}, is running on {host}; this is the run before it"));
                    newest
                }
                (None, newest) => {
                    if let (Some(shown), Some(last)) =
                        (newest, runs.last().filter(|run| Some(run.epoch.get()) > newest))
                    {
                        output::say(&format!("nothing of epoch {} is kept; this is epoch {shown}", last.epoch));
                    }
                    newest
                }
            },
        };
        let Some(epoch) = epoch else { return Ok(None) };
        let run = runs.iter().rev().find(|run| run.epoch.get() == epoch);
        let record = records.into_iter().find(|record| record.epoch.get() == epoch);
        let local = locals.into_iter().find(|local| local.epoch == epoch);
        if run.is_none() && record.is_none() && local.is_none() {
            return Ok(None);
        }
        let holder = run.and_then(|run| run.to.as_ref());
        let host = record.as_ref().map(|r| r.host.clone()).or_else(|| holder.map(|to| to.host().to_owned()));
        let runs_now = live.is_some_and(|(live, _)| live == epoch);
        let path = self.keeping.zip(holder).map(|(keeping, to)| {
            let file = RunFile { folder: folder_of(lease, None).0, stem: format!("{epoch}-{}", to.nonce()) };
            keeping.root.join(layout::home()).join(file.path())
        });
        Ok(Some(Chosen {
            name: lease.to_string(),
            item: None,
            epoch,
            held: Some(HeldBy::Lease(lease.clone())),
            slot: run.and_then(|run| run.slot).or_else(|| record.as_ref().and_then(|record| record.slot)),
            runs: runs_now,
            runs_here: runs_now && host.as_deref() == Some(&here),
            host,
            content: self.content(local.as_ref(), record.as_ref()).await,
            record,
            path: local.map(|local| local.path).or(path),
        }))
    }

    pub async fn of_queue(&self, queue: &QueueName, item: Option<&ItemId>) -> Result<Chosen> {
        let folder = format!("{}+{queue}", LeaseName::ITEMS);
        let (mut records, mut locals, mut live) = (Vec::new(), Vec::new(), None);
        if let Some(coordinator) = self.context.existing().await? {
            records = self.records(coordinator, &Ring::of_queue(queue, 1)).await;
            let found = of_item(self.locals(&folder), item);
            locals = of_this_store(coordinator, queue, found, &records).await;
            if let Some(item) = item {
                live = claim(coordinator, queue, item).await?;
            }
        }
        let mut chosen = self.of_items(queue.to_string(), locals, records, item).await;
        chosen.held = item.map(|item| HeldBy::Item(queue.clone(), item.clone()));
        let (Some(item), Some(live)) = (item, live.filter(|live| live.epoch >= chosen.epoch)) else {
            return Ok(chosen);
        };
        let is_here = live.host == leasehold_system::host::name();
        if live.epoch > chosen.epoch && !is_here && !matches!(chosen.content, Content::None) {
            let (epoch, host) = (live.epoch, live.host);
            output::say(&format!("`{item}`, epoch {epoch}, is running on {host}; this is the attempt before it"));
            return Ok(chosen);
        }
        if live.epoch > chosen.epoch {
            let file = RunFile::of_item(folder, item.as_str(), live.epoch, &live.nonce, &live.lineage);
            chosen.path = self.keeping.map(|keeping| keeping.root.join(layout::home()).join(file.path()));
            (chosen.epoch, chosen.record, chosen.content) = (live.epoch, None, Content::None);
        }
        (chosen.runs, chosen.runs_here, chosen.host) = (true, is_here, Some(live.host));
        Ok(chosen)
    }

    /// A spool has no store: what is kept of it is on the machine that ran it, or in the bucket.
    pub async fn of_spool(&self, path: &Path, item: Option<&ItemId>) -> Result<Chosen> {
        let path = path.display().to_string();
        let locals = of_item(self.locals(&spool_folder(&path)), item);
        Ok(self.of_items(format!("spool:{path}"), locals, Vec::new(), item).await)
    }

    async fn of_items(
        &self,
        name: String,
        locals: Vec<Local>,
        mut records: Vec<RunOutput>,
        item: Option<&ItemId>,
    ) -> Chosen {
        let id_of = |record: &RunOutput| record.lease.as_str().rsplit('/').next().map(String::from);
        records.retain(|record| item.is_none_or(|item| id_of(record).as_deref() == Some(item.as_str())));
        // Of one item the newest attempt; of all, what this machine wrote last, or else what the store heard of last.
        let local = match item {
            Some(_) => locals.into_iter().max_by_key(|local| local.epoch),
            None => locals.into_iter().next(),
        };
        let mut record = match item {
            Some(_) => records.into_iter().max_by_key(|record| record.epoch),
            None => records.into_iter().next_back(),
        };
        let is_same =
            |local: &Local, record: &RunOutput| local.item == id_of(record) && local.epoch == record.epoch.get();
        let mut local = local;
        match (&local, &record) {
            (Some(here), Some(there)) if is_same(here, there) => {}
            // Still running here, or newer.
            (Some(here), Some(there)) if is_being_written(&here.path) || here.epoch > there.epoch.get() => {
                record = None
            }
            (Some(_), Some(_)) => local = None,
            _ => {}
        }
        let runs_here = local.as_ref().is_some_and(|local| is_being_written(&local.path));
        let id = record.as_ref().and_then(id_of).or_else(|| local.as_ref().and_then(|local| local.item.clone()));
        Chosen {
            name,
            item: id.or_else(|| item.map(ToString::to_string)),
            epoch: record.as_ref().map(|r| r.epoch.get()).or(local.as_ref().map(|local| local.epoch)).unwrap_or(0),
            held: None,
            slot: None,
            host: record
                .as_ref()
                .map(|record| record.host.clone())
                .or_else(|| runs_here.then(leasehold_system::host::name)),
            runs: runs_here,
            runs_here,
            content: self.content(local.as_ref(), record.as_ref()).await,
            record,
            path: local.map(|local| local.path),
        }
    }

    /// The whole of it from here, from a folder that is shared, or from the bucket; else the last lines.
    async fn content(&self, local: Option<&Local>, record: Option<&RunOutput>) -> Content {
        let named = record.and_then(|record| record.file.as_deref());
        if let Some(keeping) = self.keeping {
            let shared = named.and_then(|file| file.split_once('/'));
            let shared = shared.and_then(|(home, file)| layout::within(&keeping.root, home, file));
            for path in local.map(|local| local.path.clone()).into_iter().chain(shared) {
                let found = file::read(&path, keeping.most_shown()).ok();
                if let Some(found) = found.filter(|found| !found.stretches.is_empty()) {
                    let stretches = whole(found, &path.display().to_string(), keeping, record);
                    return Content::File(path, stretches);
                }
            }
            if let (Some(bucket), Some((_, file))) = (&keeping.bucket, named.and_then(|file| file.split_once('/'))) {
                match bucket.read(file, keeping.most_shown()).await {
                    Ok(Some(found)) => {
                        let url = format!("{bucket}/{file}");
                        let stretches = whole(found, &url, keeping, record);
                        return Content::Bucket(url, stretches);
                    }
                    Ok(None) => {}
                    Err(error) => output::warn(&error.to_string()),
                }
            }
        }
        record.map_or(Content::None, |record| Content::Tail(record.tail.clone()))
    }

    /// What the store has of runs that printed anything; without it, there is still this machine.
    async fn records(&self, coordinator: &Coordinator, ring: &Ring) -> Vec<RunOutput> {
        let all = list(coordinator, ring).await.unwrap_or_else(|error| {
            output::warn(&error.to_string());
            Vec::new()
        });
        all.into_iter().filter(|record| record.bytes > 0).collect()
    }

    /// The files in a folder of this machine, the last written first.
    fn locals(&self, folder: &str) -> Vec<Local> {
        let Some(keeping) = self.keeping else { return Vec::new() };
        let files = files_in(&keeping.root.join(layout::home()).join(folder)).into_iter();
        let local = |path: PathBuf| {
            let Named { item, epoch, nonce, lineage } = RunFile::parse(path.file_name()?.to_str()?)?;
            let (item, nonce, lineage) = (item.map(String::from), nonce.to_owned(), lineage.map(String::from));
            Some(Local { path, item, epoch, nonce, lineage })
        };
        files.filter_map(|(_, path)| local(path)).collect()
    }

    /// Refuses an item that its queue does not have.
    pub async fn check_item(&self, chosen: &Chosen) -> Result<()> {
        let (Some(HeldBy::Item(queue, item)), Some(coordinator)) = (&chosen.held, self.context.existing().await?)
        else {
            return Ok(());
        };
        Queue::new(coordinator.store().clone(), queue.clone()).inspect(item).await.map(drop)
    }

    /// Refuses a name that neither a lease nor a queue has.
    pub async fn check_name(&self, name: &str) -> Result<()> {
        let Ok(Target::Queue(queue)) = Target::parse(name) else { return Ok(()) };
        let Some(coordinator) = self.context.existing().await? else { return self.context.lease(name).await.map(drop) };
        let items = Queue::new(coordinator.store().clone(), queue).list(None, 1).await?;
        if items.entries.is_empty() && items.next.is_none() { self.context.lease(name).await.map(drop) } else { Ok(()) }
    }

    /// The same run, as it is found now.
    pub async fn again(&self, chosen: &Chosen) -> Result<Option<Chosen>> {
        match &chosen.held {
            Some(HeldBy::Lease(lease)) => self.of_lease(lease, Wanted::Epoch(chosen.epoch)).await,
            Some(HeldBy::Item(queue, item)) => self.of_queue(queue, Some(item)).await.map(Some),
            None => Ok(None),
        }
    }

    /// Whether it is still running, as far as anybody knows.
    pub async fn is_live(&self, chosen: &Chosen) -> Result<bool> {
        let Some(coordinator) = self.context.existing().await? else { return Ok(false) };
        Ok(match &chosen.held {
            Some(HeldBy::Lease(lease)) => {
                let seen = coordinator.inspect(lease).await?;
                seen.record.epoch.get() == chosen.epoch && seen.record.live_tenure(seen.now).is_some()
            }
            Some(HeldBy::Item(queue, item)) => {
                claim(coordinator, queue, item).await?.is_some_and(|live| live.epoch == chosen.epoch)
            }
            None => chosen.path.as_deref().is_some_and(is_being_written),
        })
    }
}

fn of_item(mut locals: Vec<Local>, item: Option<&ItemId>) -> Vec<Local> {
    locals.retain(|local| item.is_none_or(|item| local.item.as_deref() == Some(item.as_str())));
    locals
}

/// Those that the records name, or that are of an item as this store has it: another store's queue may have the same name, and
/// the same items. Of many items only those that were written last are looked for.
async fn of_this_store(
    coordinator: &Coordinator,
    queue: &QueueName,
    locals: Vec<Local>,
    records: &[RunOutput],
) -> Vec<Local> {
    let queue = Queue::new(coordinator.store().clone(), queue.clone());
    let (mut lineages, mut ours) = (BTreeMap::new(), Vec::new());
    for local in locals {
        let name = local.path.file_name().and_then(|name| name.to_str());
        let named = records.iter().filter_map(|record| record.file.as_deref()?.rsplit('/').next());
        let mut is_ours = named.into_iter().any(|file| Some(file) == name);
        if let Some(item) = local.item.as_ref().filter(|_| !is_ours) {
            if !lineages.contains_key(item) && lineages.len() < MAX_LOOKED_FOR {
                let seen = match item.parse::<ItemId>() {
                    Ok(id) => queue.inspect(&id).await.ok(),
                    Err(_) => None,
                };
                lineages.insert(item.clone(), seen.map(|seen| seen.item.lineage.to_string()));
            }
            is_ours = local.lineage.is_some() && lineages.get(item).is_some_and(|known| *known == local.lineage);
        }
        ours.extend(is_ours.then_some(local));
    }
    ours
}

/// What was found at a location, and a word about what of it is not shown.
fn whole(found: Found, location: &str, keeping: &Keeping, record: Option<&RunOutput>) -> Vec<Stretch> {
    if !found.has_more {
        return with_end(found.stretches, record);
    }
    let most = Size(keeping.most_shown());
    output::say(&format!(
        "the output in `{location}` has more than {most}; only so much of it is shown. A larger `output_size` shows more"
    ));
    found.stretches
}

/// With the last lines from the store where the end of it could not be written.
fn with_end(mut stretches: Vec<Stretch>, record: Option<&RunOutput>) -> Vec<Stretch> {
    let end = stretches.last().map_or(0, |(at, bytes)| at + bytes.len() as u64);
    let Some(record) = record.filter(|record| record.bytes > end) else { return stretches };
    output::say("the end of the output could not be kept; its last lines are from the store");
    let at = record.bytes.saturating_sub(record.tail.len() as u64);
    let known = usize::try_from(end.saturating_sub(at)).unwrap_or(usize::MAX);
    stretches.push((at.max(end), record.tail.as_bytes().get(known..).unwrap_or_default().to_vec()));
    stretches
}

/// The epoch of the newest run that the journal has for one of these slots.
async fn journaled(coordinator: &Coordinator, job: &LeaseName, first: Slot, last: Slot) -> Result<Option<u64>> {
    let (journal, _) = Journals::new(coordinator.clone()).read(job).await?;
    let runs = journal.entries.iter().filter(|entry| (first..=last).contains(&entry.slot) && entry.last.is_none());
    Ok(runs.filter_map(|entry| Some((entry.slot, entry.epoch?.get()))).max().map(|(_, epoch)| epoch))
}

/// The attempt of an item that is still running.
async fn claim(coordinator: &Coordinator, queue: &QueueName, item: &ItemId) -> Result<Option<Live>> {
    let seen = match Queue::new(coordinator.store().clone(), queue.clone()).inspect(item).await {
        // Purged, perhaps; what it printed may still be there.
        Err(error) if error.kind() == Kind::Invalid => return Ok(None),
        seen => seen?,
    };
    let State::Claimed(tenure) = &seen.item.state else { return Ok(None) };
    let (epoch, holder) = (seen.item.epoch.get(), &tenure.holder);
    let lineage = seen.item.lineage.to_string();
    let live = Live { epoch, host: holder.host().to_owned(), nonce: holder.nonce().to_string(), lineage };
    Ok(Some(live).filter(|_| seen.now < tenure.deadline))
}
