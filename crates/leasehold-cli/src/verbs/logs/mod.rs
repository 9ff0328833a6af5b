//! `logs`: what a run printed.
//!
//! Promise: it shows what is kept in the folder of this machine, or in the bucket, and otherwise the last lines from the
//! store, and says which of them it is. It changes nothing. Non-promise: a run on another machine cannot be followed here.

mod find;
mod show;

use crate::args::Logs as Args;
use crate::context::{Context, Target};
use crate::exit::Exit;
use crate::run_output::Keeping;
use find::{Chosen, Content, Finder};
use leasehold_core::{Error, Kind, LeaseName, Result, Slot};
use leasehold_work::queue::ItemId;
use leasehold_work::schedule::{Zone, slot_text};

/// Which run of a lease is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wanted {
    Newest,
    Epoch(u64),
    /// The newest whose slot is one of these.
    Slots(Slot, Slot),
}

impl Wanted {
    fn parse(text: Option<&str>) -> Result<Self> {
        match text {
            None => Ok(Wanted::Newest),
            Some(text) => {
                let is_epoch = text.bytes().all(|byte| byte.is_ascii_digit());
                let epoch = text.parse().ok().filter(|_| is_epoch).map(Wanted::Epoch);
                let slot = || Zone::UTC.parse_instant("run", text).ok().map(|slot| (slot, slot));
                let slots = || Zone::UTC.day(text).or_else(slot).map(|(first, last)| Wanted::Slots(first, last));
                let wanted = epoch.or_else(slots);
                let form = "use an epoch, a slot such as 2026-11-15T03:00:00Z, a date, or of a queue an item's id";
                wanted.ok_or_else(|| Error::invalid("run", text, form))
            }
        }
    }

    /// For a run that a lease never had, or that nobody remembers.
    fn unknown(self, lease: &LeaseName) -> Option<Error> {
        let message = match self {
            Wanted::Newest => return None,
            Wanted::Epoch(epoch) => {
                format!(
                    "no run of `{lease}` under epoch {epoch} is known; `leasehold history {lease}` shows its epochs"
                )
            }
            Wanted::Slots(first, last) => {
                let slots = match (slot_text(first), slot_text(last)) {
                    (first, last) if first == last => format!("slot {first}"),
                    (first, last) => format!("a slot from {first} to {last}"),
                };
                format!("no run of `{lease}` for {slots} is known; `leasehold runs {lease}` shows its slots")
            }
        };
        Some(Error::new(Kind::Invalid, message))
    }
}

pub async fn logs(context: &Context, args: &Args) -> Result<Exit> {
    if args.follow && context.common.json {
        return Err(Error::new(Kind::Invalid, "--follow and --json do not go together: JSON is of what is there"));
    }
    let keeping = context.settings()?.keeping()?;
    let finder = Finder { context, keeping: keeping.as_ref() };
    let item = args.run.as_deref().map(str::parse::<ItemId>).and_then(std::result::Result::ok);
    let chosen = match (Target::parse(&args.name), item) {
        (Ok(Target::Spool(path)), item) => finder.of_spool(&path, item.as_ref()).await?,
        (Ok(Target::Queue(queue)), Some(item)) => finder.of_queue(&queue, Some(&item)).await?,
        (queue, _) => {
            let lease = LeaseName::new(&args.name)?;
            let wanted = Wanted::parse(args.run.as_deref())?;
            let found = finder.of_lease(&lease, wanted).await?;
            match (found, queue) {
                (Some(found), _) => found,
                (None, Ok(Target::Queue(queue))) if args.run.is_none() => finder.of_queue(&queue, None).await?,
                (None, _) => {
                    // Says so if there is no such lease at all.
                    context.lease(&args.name).await?;
                    return Err(wanted.unknown(&lease).unwrap_or_else(|| nothing(&args.name, None, keeping.as_ref())));
                }
            }
        }
    };
    if let Content::None = chosen.content
        && !(args.follow && chosen.runs_here)
    {
        finder.check_item(&chosen).await?;
        finder.check_name(&args.name).await?;
        return Err(nothing_yet(&chosen).unwrap_or_else(|| nothing(&args.name, args.run.as_deref(), keeping.as_ref())));
    }
    if context.common.json {
        return show::json(&chosen);
    }
    if args.follow {
        return show::follow(&finder, &chosen, args.tail).await;
    }
    show::text(&chosen, args.tail)
}

fn nothing(name: &str, run: Option<&str>, keeping: Option<&Keeping>) -> Error {
    let of = run.map_or_else(|| format!("`{name}`"), |run| format!("`{name}`, run `{run}`,"));
    let why = match keeping {
        Some(_) => {
            "it printed nothing, or nobody kept it: `schedule`, `work` and `run --keep-output` do; `leasehold config` says where, \
             and of how many runs"
        }
        None => "the setting `output` is off",
    };
    Error::new(Kind::Invalid, format!("no output of {of} is kept: {why}"))
}

/// For a run that is still running.
fn nothing_yet(chosen: &Chosen) -> Option<Error> {
    let host = chosen.host.as_deref().filter(|_| chosen.runs)?;
    let (name, epoch) = (&chosen.name, chosen.epoch);
    let message = if chosen.runs_here {
        format!("`{name}`, epoch {epoch}, is held here; nothing that its run printed is kept so far")
    } else {
        format!("`{name}`, epoch {epoch}, is running on {host}; until it ends, its output is there only")
    };
    Some(Error::new(Kind::Invalid, message))
}
