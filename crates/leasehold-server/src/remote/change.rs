//! A change that a client asks for: authorised, decided and written.

use super::rules::{Needs, Subject, item_of, name_of};
use super::{Body, fence, presence};
use crate::access::{Caller, Denied, KeyId};
use crate::early;
use crate::serve::{Claimed, In, Json, Problem, Site};
use axum::extract::State;
use leasehold_core::item::protocol::Request as ItemRequest;
use leasehold_core::lease::protocol::{Order, Request as LeaseRequest, RunRequest};
use leasehold_core::store::Swap;
use leasehold_core::wire::{self, Changed};
use leasehold_core::{Coordinator, Error, HolderId, Key, Kind, LeaseName, Lineage, Revision, Shelf, Who};
use leasehold_stores::Namespace;
use leasehold_work::documents;
use leasehold_work::output;
use leasehold_work::queue::{ItemName, Queue};
use leasehold_work::schedule::requests::RunRequests;
use std::time::Duration;

/// How long a lease must have been free before a client may forget it.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(86_400);

/// A change by a holder, which renews, reports on or ends what was granted. It is served before all others.
pub(super) async fn hold(
    site: State<Site>,
    namespace: In,
    caller: Caller,
    Body(asked): Body<wire::Change>,
) -> Result<Json<Changed>, Problem> {
    if !asked.verb.needs_a_claim() {
        return Err(Problem::invalid("only what holders ask for goes here; send it to `records/change`"));
    }
    let (State(server), bearer) = (site.clone(), caller.clone());
    let answer = change(site, namespace, caller, Body(asked)).await?;
    if answer.0.done.is_none() {
        // A holder usually knows the current revision of what it holds.
        server.claimed_nothing(&bearer, Claimed::ToChange);
    }
    Ok(answer)
}

/// Any change that a client may ask for, as far as its key allows it.
pub(super) async fn change(
    State(site): State<Site>,
    In(namespace): In,
    caller: Caller,
    Body(wire::Change { record: key, expected, verb }): Body<wire::Change>,
) -> Result<Json<Changed>, Problem> {
    let needs = Needs::of(&key, &verb).ok_or_else(|| wire::direct(&key))?;
    needs.check(&caller, &namespace)?;
    verb.check()?;
    if let Some(holder) = verb.holder() {
        check_own(&caller, holder)?;
    }
    if let wire::Verb::Lease(LeaseRequest::Operate { order, .. }) = &verb {
        super::may_order(&caller, &namespace, order)?;
    }
    let coordinator = match verb.needs_a_claim() {
        true => site.coordinator_of_holder(&namespace).await?,
        false => site.coordinator(&namespace).await?,
    };
    let carrier = Carrier { site: &site, namespace: &namespace, caller: &caller, coordinator: &coordinator };
    let hinted = hinted(&key, &verb);
    let swap = carrier.carry_out(&key, expected.map(Revision), verb).await?;
    if let Some(Swap::Done { .. }) = swap {
        hinted.iter().for_each(|key| site.tended().changed(&namespace, key));
    }
    Ok(Json(swap.into()))
}

/// Refuses a holder id that claims to be over the API under another key: only a server makes such ids.
fn check_own(caller: &Caller, holder: &HolderId) -> Result<(), Problem> {
    let Some(key) = holder.host().strip_prefix(Caller::HOST).and_then(|id| id.parse::<KeyId>().ok()) else {
        return Ok(());
    };
    if key == caller.key {
        return Ok(());
    }
    let detail =
        format!("a holder on `{}` is one with that key, and this request has another; use another host", holder.host());
    Err(Problem::invalid(detail))
}

/// The keys whose watchers are notified of a change: nobody waits for an acquisition or a renewal.
fn hinted(key: &Key, verb: &wire::Verb) -> Vec<Key> {
    match verb {
        wire::Verb::Lease(LeaseRequest::Release { .. } | LeaseRequest::Operate { .. }) => vec![key.clone()],
        wire::Verb::Item(_) | wire::Verb::Add(_) => {
            let queue = item_of(key).and_then(|item| LeaseName::new(item.queue.as_str()).ok());
            let wake = queue.map(|queue| Key::new(Shelf::Queue, &queue));
            wake.into_iter().chain([key.clone()]).collect()
        }
        _ => Vec::new(),
    }
}

struct Carrier<'a> {
    site: &'a Site,
    namespace: &'a Namespace,
    caller: &'a Caller,
    coordinator: &'a Coordinator,
}

impl Carrier<'_> {
    async fn carry_out(
        &self,
        key: &Key,
        expected: Option<Revision>,
        verb: wire::Verb,
    ) -> Result<Option<Swap>, Problem> {
        Ok(match verb {
            wire::Verb::Lease(request) => self.lease(&key.name, self.signed(request), expected.as_ref()).await?,
            wire::Verb::Confirm if key.shelf == Shelf::Lease => {
                let written = self.coordinator.confirm(&key.name, &known(expected)?).await?;
                written.and_then(|seen| Some(Swap::Done { revision: seen.revision?, now: seen.anchor.now }))
            }
            wire::Verb::Document { text } if key.shelf == Shelf::Fence => {
                fence::change(self.caller, self.namespace, self.coordinator, key, expected.as_ref(), &text).await?
            }
            wire::Verb::Purge if key.shelf == Shelf::Presence => {
                self.presence(key, Some(&known(expected)?), None).await?
            }
            wire::Verb::Document { text } if key.shelf == Shelf::Presence => {
                self.presence(key, expected.as_ref(), Some(&text)).await?
            }
            wire::Verb::Document { text } => self.document(key, expected.as_ref(), &text).await?,
            verb => self.item(key, expected, verb).await?,
        })
    }

    async fn lease(
        &self,
        lease: &LeaseName,
        mut request: LeaseRequest,
        expected: Option<&Revision>,
    ) -> leasehold_core::Result<Option<Swap>> {
        // Output and history are stored by lineage, so a client that chose one could choose that of a lease that it may not see.
        let drawn = Lineage::random();
        if let LeaseRequest::Acquire { lineage, .. } | LeaseRequest::Operate { lineage, .. } = &mut request {
            *lineage = drawn;
        }
        let request = &request;
        if let LeaseRequest::Operate { order: Order::Forget { idle }, .. } = request
            && *idle < FORGOTTEN_AFTER
        {
            return Err(Error::new(Kind::Invalid, "a lease is forgotten only after it was free for a day"));
        }
        if let LeaseRequest::Acquire { requested: Some(requested), .. } = request {
            self.check_request(lease, requested).await?;
        }
        if let LeaseRequest::Acquire { slot: Some(claim), .. } = request {
            early::check_is_due(self.coordinator, lease, claim.slot).await?;
        }
        let remembered = self.site.tended().remembered(self.namespace, lease);
        let written = self.coordinator.carry_out(lease, request, expected, remembered.as_deref()).await?;
        if let Some(seen) = &written
            && let LeaseRequest::Operate { order: Order::Forget { .. }, .. } = request
        {
            self.coordinator.erase_leftovers(lease, &seen.record).await.map_err(|e| {
                let message = "it was forgotten, but not all that it left behind is erased";
                Error::new(Kind::Indeterminate, message).with_source(e)
            })?;
        }
        // The client has built the first version under a lineage of its own. So it has to read the record, where it finds its
        // request by the nonce, as after a lost answer, and learns the lineage.
        let is_first = written.as_ref().is_some_and(|seen| seen.record.lineage == Some(drawn));
        if is_first {
            self.site.tended().changed(self.namespace, &Key::new(Shelf::Lease, lease));
        }
        let swap = written
            .as_ref()
            .filter(|_| !is_first)
            .and_then(|seen| Some(Swap::Done { revision: seen.revision.clone()?, now: seen.anchor.now }));
        self.site.tended().remember(self.namespace, lease, written);
        Ok(swap)
    }

    /// Checks an acquisition that carries out a request for a run: there must be such a request, from the operator that it names.
    async fn check_request(&self, lease: &LeaseName, requested: &RunRequest) -> leasehold_core::Result<()> {
        let (requests, _) = RunRequests::new(self.coordinator.clone()).all().await?;
        if requests.iter().any(|request| request.job == *lease && request.condition() == *requested) {
            return Ok(());
        }
        Err(Error::new(Kind::Invalid, format!("nobody requested this run of `{lease}`; nothing was done")))
    }

    /// Adds the key to the operator's name, for the history.
    fn signed(&self, request: LeaseRequest) -> LeaseRequest {
        match request {
            LeaseRequest::Operate { nonce, lineage, by, why, expected, order } => {
                let by = self.signature(&by);
                LeaseRequest::Operate { nonce, lineage, by, why, expected, order }
            }
            other => other,
        }
    }

    fn signature(&self, by: &Who) -> Who {
        Who::lossy(&format!("{} (key {}, {by})", self.caller.label, self.caller.key), self.caller.key.as_str())
    }

    async fn item(&self, key: &Key, expected: Option<Revision>, verb: wire::Verb) -> Result<Option<Swap>, Problem> {
        let name: ItemName = item_of(key).ok_or_else(|| Problem::invalid(format!("`{}` is no item", key.name)))?;
        let store = self.coordinator.store().clone();
        let queue = Queue::with_clock(store, name.queue.clone(), self.coordinator.clock().clone());
        Ok(match verb {
            wire::Verb::Item(request) => {
                let request = match *request {
                    ItemRequest::Operate { nonce, by, why, expected, order } => {
                        ItemRequest::Operate { nonce, by: self.signature(&by), why, expected, order }
                    }
                    // Its follow-ups are added first, also to queues outside this caller's scope: the one who completed it had
                    // them in its scope.
                    ItemRequest::Settle => {
                        queue.finish(&name.id).await?;
                        return Ok(None);
                    }
                    other => other,
                };
                queue.carry_out(&name, &request, &known(expected)?).await?
            }
            wire::Verb::Add(addition) => {
                // The store's own time, which decides the position in line.
                let now = self.coordinator.store().read(key).await?.now;
                queue.carry_out_add(&name, &addition.item(now), expected.as_ref()).await?
            }
            wire::Verb::TakeBack => queue.carry_out_take_back(&name, &known(expected)?).await?,
            wire::Verb::Purge => queue.carry_out_purge(&name, &known(expected)?).await?,
            wire::Verb::Confirm => queue.confirm_item(&name, &known(expected)?).await?,
            wire::Verb::Lease(_) | wire::Verb::Document { .. } => return Err(wire::direct(key).into()),
        })
    }

    async fn presence(
        &self,
        key: &Key,
        expected: Option<&Revision>,
        text: Option<&str>,
    ) -> Result<Option<Swap>, Problem> {
        presence::change(self.caller, self.namespace, self.coordinator, key, expected, text).await
    }

    async fn document(&self, key: &Key, expected: Option<&Revision>, text: &str) -> Result<Option<Swap>, Problem> {
        let about = documents::check(key, text.as_bytes()).map_err(|e| Problem::invalid(e.to_string()))?;
        if key.shelf == Shelf::Output {
            let lease = about.ok_or_else(|| Problem::invalid("a record of output says whose it is"))?;
            self.takes_part(&lease)?;
            self.may_be_at(key, &lease).await?;
            self.replaces_its_own(key, &lease).await?;
        }
        Ok(Some(self.coordinator.store().document(key, expected, text.as_bytes()).await?))
    }
}

impl Carrier<'_> {
    fn takes_part(&self, lease: &LeaseName) -> Result<(), Problem> {
        if super::takes_part_in(self.caller, self.namespace, lease) {
            return Ok(());
        }
        let denied = self.caller.may(super::verb_of(lease), self.namespace, Some(&name_of(lease)));
        Err(denied.err().unwrap_or(Denied::Missing).into())
    }

    /// Refuses a key for output that is not this lease's, or queue's, own.
    async fn may_be_at(&self, key: &Key, lease: &LeaseName) -> Result<(), Problem> {
        let is_own = match Subject::of(key) {
            Subject::Lineage(folder) => {
                let lineage = self.coordinator.inspect(lease).await?.record.lineage;
                lineage.is_some_and(|lineage| lineage.to_string() == folder)
            }
            Subject::Name(queue) => name_of(lease) == queue && lease.folder() == Some(LeaseName::ITEMS),
            Subject::Anybody | Subject::Writer | Subject::Nobody => false,
        };
        if is_own { Ok(()) } else { Err(Problem::invalid(format!("`{key}` is no place for the output of `{lease}`"))) }
    }

    /// Refuses to replace the kept output of another lease or queue: the lineage alone does not say whose it is.
    async fn replaces_its_own(&self, key: &Key, lease: &LeaseName) -> Result<(), Problem> {
        let Some(found) = self.coordinator.store().read(key).await?.value else { return Ok(()) };
        // An unreadable record belongs to nobody, and may be replaced.
        let kept = output::subject(&found.bytes, key.name.as_str()).ok().flatten();
        if kept.is_none_or(|kept| name_of(&kept) == name_of(lease) && kept.folder() == lease.folder()) {
            return Ok(());
        }
        Err(Problem::invalid(format!("`{key}` has output of another lease; nothing was written")))
    }
}

fn known(expected: Option<Revision>) -> leasehold_core::Result<Revision> {
    expected.ok_or_else(|| Error::new(Kind::Invalid, "this changes a record that is there, so name its revision"))
}
