//! Looking at leases.
//!
//! Promise: each request reads a bounded number of records, however many there are, and none before the first name in the key's
//! scope. A listing continues where it stopped, by its cursor, which is sealed and reveals no name.

use super::view::{FencedWriteView, LeaseView, TransferView, is_in};
use crate::access::Verb;
use crate::api::asked::Asked;
use crate::api::cursor::{self, Beginnings};
use crate::api::reading::{Params, field, limit, optional};
use crate::api::walk::{Steps, Walk};
use crate::remote::knows_resource;
use crate::serve::{Json, Problem};
use leasehold_core::{Epoch, Error, FencedMark, LeaseName, NamePattern};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// How many records one request reads at a time, and how often.
const PAGE: usize = 500;
const READS: usize = 10;
/// How many it reads at first at least, however few are wanted.
const LEAST_PAGE: usize = 50;
const STATES: &str = "held, free, expired, paused, forgotten, moving, moved or arriving";

/// Which ones to list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Listing {
    /// Only names like this: `*` stands for any characters, `?` for one.
    name: Option<String>,
    /// Only those in this state.
    state: Option<String>,
    /// At most this many, 1 to 1000; 100 by default.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// Where an earlier listing stopped: its `next`.
    cursor: Option<String>,
}

/// A page of leases, in the order of their names.
#[derive(Debug, Serialize, ToSchema)]
pub struct Leases {
    leases: Vec<LeaseView>,
    /// Leases whose record cannot be read, by name. The others are listed all the same.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    damaged: Vec<Damaged>,
    /// There may be more: give this as `cursor`. A page that was read to its bound may be short, or empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

/// A record that cannot be read.
#[derive(Debug, Serialize, ToSchema)]
pub struct Damaged {
    /// The lease or job whose record it is.
    pub(in crate::api) name: String,
    /// What is wrong with the record, for people.
    pub(in crate::api) why: String,
}

/// Leases, by name.
#[utoipa::path(get, path = "/v1/ns/{namespace}/leases", tag = "leases", params(Listing),
    responses((status = 200, description = "A page of leases.", body = Leases)))]
pub async fn list(asked: Asked, Params(listing): Params<Listing>) -> Result<Json<Leases>, Problem> {
    asked.lists()?;
    let pattern = optional("name", listing.name, |name| name.parse::<NamePattern>())?;
    let wanted = listing.state;
    if wanted.as_deref().is_some_and(|wanted| !STATES.split([',', ' ']).any(|word| word == wanted && word != "or")) {
        return Err(Problem::invalid(format!("field `state`: use {STATES}")).with("field", "state"));
    }
    let most = limit(listing.limit, 100, 1_000)?;
    let text = pattern.as_ref().map(ToString::to_string).unwrap_or_default();
    let own = ["leases", asked.namespace.as_str()];
    let after = cursor::read(&asked.site, &own, listing.cursor.as_deref()).await?;
    let coordinator = asked.coordinator().await?;
    let mut found = Leases { leases: Vec::new(), damaged: Vec::new(), next: None };
    let reach = Beginnings::of(asked.caller.scope()).within(cursor::prefix(&text));
    let steps = Steps { first: most.clamp(LEAST_PAGE, PAGE), further: PAGE, most: READS };
    let mut walk = Walk::new(reach, after.as_ref(), steps);
    while found.leases.len() < most
        && let Some((at, step)) = walk.step()
    {
        let page = coordinator.list(at.as_ref(), step).await?;
        let mut left = page.entries.len();
        for (name, seen) in page.entries {
            walk.pass(&name);
            left -= 1;
            let is_shown = pattern.as_ref().is_none_or(|pattern| pattern.matches(name.as_str()));
            if is_shown && asked.caller.sees(&asked.namespace, name.as_str()) {
                found.take(&name, seen.as_ref(), wanted.as_deref());
            }
            if found.leases.len() == most {
                break;
            }
        }
        walk.end(page.more || left > 0);
    }
    found.next = cursor::after(&asked.site, &own, walk.next().as_ref()).await?;
    Ok(Json(found))
}

impl Leases {
    fn take(&mut self, name: &LeaseName, seen: Result<&leasehold_core::Inspection, &Error>, wanted: Option<&str>) {
        match seen {
            Ok(seen) if seen.record.is_unknown() => {}
            Ok(seen) if wanted.is_none_or(|wanted| is_in(wanted, &seen.record, seen.now)) => {
                self.leases.push(seen.into());
            }
            Ok(_) => {}
            Err(error) => self.damaged.push(Damaged { name: name.to_string(), why: error.to_string() }),
        }
    }
}

/// One lease. One that nobody ever held is free, at epoch 0.
#[utoipa::path(get, path = "/v1/ns/{namespace}/leases/{name}", tag = "leases",
    responses((status = 200, description = "The lease.", body = LeaseView)))]
pub async fn one(asked: Asked) -> Result<Json<LeaseView>, Problem> {
    let name = asked.name(Verb::Read)?.of_a_lease()?;
    let coordinator = asked.coordinator().await?;
    let seen = coordinator.inspect(&name).await?;
    let mut view = LeaseView::from(&seen);
    // Optional: without them the answer is still about the lease.
    let counters = coordinator.counters(&name).await.unwrap_or_default();
    let is_known = |mark: &&FencedMark| knows_resource(&asked.caller, &asked.namespace, mark.write.resource.as_str());
    view.fenced_writes = counters.fenced_writes().iter().rev().filter(is_known).map(FencedWriteView::from).collect();
    Ok(Json(view))
}

/// How much of a history to list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Looking {
    /// At most this many transfers, 1 to 1000; 50 by default.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// Only those of epochs before this one: the `epoch` of the last transfer of an earlier answer.
    #[param(maximum = 9007199254740991_u64)]
    before: Option<u64>,
}

/// The transfers of a lease, the latest first.
#[derive(Debug, Serialize, ToSchema)]
pub struct Transfers {
    transfers: Vec<TransferView>,
    /// What is missing between them, and why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    damaged: Vec<String>,
    /// Whether there are older ones.
    more: bool,
}

/// Who held a lease, and how each tenure ended.
#[utoipa::path(get, path = "/v1/ns/{namespace}/leases/{name}/history", tag = "leases", params(Looking),
    responses((status = 200, description = "Its transfers.", body = Transfers)))]
pub async fn history(asked: Asked, Params(looking): Params<Looking>) -> Result<Json<Transfers>, Problem> {
    let name = asked.name(Verb::Read)?.of_a_lease()?;
    let most = limit(looking.limit, 50, 1_000)?;
    let coordinator = asked.coordinator().await?;
    let seen = coordinator.inspect(&name).await?;
    let before = field("before", looking.before.map(Epoch::new).transpose())?;
    let is_wanted = |epoch: Epoch| before.is_none_or(|before| epoch < before);
    let recent = &seen.record.transfers;
    let (transfers, damaged) = if recent.iter().filter(|transfer| is_wanted(transfer.epoch)).count() > most {
        // The archive has older ones only.
        (recent.clone(), Vec::new())
    } else {
        let history = coordinator.history(&name, &seen.record).await?;
        (history.transfers, history.damaged.iter().map(ToString::to_string).collect())
    };
    let mut wanted = transfers.iter().rev().filter(|transfer| is_wanted(transfer.epoch));
    let transfers = wanted.by_ref().take(most).map(|transfer| TransferView::from(transfer.as_ref())).collect();
    Ok(Json(Transfers { transfers, damaged, more: wanted.next().is_some() }))
}
