//! Notifying people: judges runs as they end, and delivers messages.
//!
//! Promise: nothing here delays a command or changes how it ends. Messages are in the store before they are delivered, so
//! that a machine that dies leaves it to the next; it is delivered at least once, under one id. Non-promise: while the store is
//! away nobody is told; what happened meanwhile is judged when it is back.

mod table;
mod target;

pub use table::{NotifyTables, Told};
pub use target::Target;

use crate::config::{Settings, Source};
use leasehold_core::clock::{Clock, Moment, SystemClock};
use leasehold_core::item::State;
use leasehold_core::{Coordinator, Error, Event, Kind, LeaseName, Result, Timestamp, Ttl};
use leasehold_work::notify::{Board, Cause, Channel, Detail, Facts, Notice, StoreLocation, Subject};
use leasehold_work::queue::{Claimed, Claimer, Item, ItemGrant, ItemId, Queue, Reason};
use leasehold_work::spool::Spool;
use leasehold_work::tally::DeadLetter;
use std::sync::Arc;
use std::time::Duration;
use target::NotTaken;

/// How long a run stays after its command, to tell how it ended.
pub const AFTER_RUN: Duration = Duration::from_secs(5);
/// How long judging may take when the store does not answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long one delivery may take, and for how long it is claimed.
const DELIVERY: Duration = Duration::from_secs(10);
const CLAIM: Duration = Duration::from_secs(20);
/// How soon it is looked again whether the message before has arrived, once it may have.
const IN_TURN: Duration = Duration::from_millis(500);
/// How many reminders that were replaced are looked through for what comes before them.
const MAX_WITHDRAWN: usize = 1_000;
/// What is left of a short time for saying how a delivery went, and the least that a delivery is given.
const LAST_WORD: Duration = Duration::from_millis(500);
const LEAST: Duration = Duration::from_secs(1);
/// How often a process that stays looks for messages, and at all leases and jobs.
const LOOK: Duration = Duration::from_secs(2);
const SWEEP: Duration = Duration::from_secs(10);
const SWEEP_QUEUE: Duration = Duration::from_secs(60);
/// How many different errors are said in a row. An error may have a number in it that is never the same.
const MAX_SAID: usize = 8;
/// A sweep is at most this part of the time.
const SHARE: u32 = 20;
/// For how long messages that were delivered are kept, so that none is added twice, and how often old ones are removed.
const KEPT: Duration = Duration::from_secs(3 * 86_400);
const PURGE: Duration = Duration::from_secs(6 * 3_600);

/// The rules in force, and the target of each channel.
#[derive(Debug, Clone)]
pub struct Notifier {
    board: Board,
    targets: Arc<Vec<(Channel, Target)>>,
}

impl Notifier {
    /// By these rules; none if there are none.
    pub fn new(coordinator: &Coordinator, rules: Vec<Told>, location: StoreLocation) -> Option<Self> {
        if rules.is_empty() {
            return None;
        }
        let targets = rules.iter().map(|(rule, target)| (rule.channel.clone(), target.clone())).collect();
        let rules = rules.into_iter().map(|(rule, _)| rule).collect();
        Some(Notifier { board: Board::new(coordinator.clone(), rules, location), targets: Arc::new(targets) })
    }

    /// Judges the present state of a lease, after a run about which this machine knows more than the store.
    pub async fn run_ended(&self, lease: &LeaseName, detail: Option<Detail>) {
        bounded(Named::Lease(lease.as_str()), self.judge(lease, detail, 0)).await;
    }

    /// Judges a lease of which a stale write was just refused and counted.
    pub async fn refused(&self, lease: &LeaseName) {
        bounded(Named::Lease(lease.as_str()), self.judge(lease, None, 1)).await;
    }

    async fn judge(&self, lease: &LeaseName, detail: Option<Detail>, refused: u64) -> Result<()> {
        let coordinator = self.board.coordinator();
        let seen = coordinator.inspect(lease).await?;
        let subject = Subject::of(lease, &seen.record);
        if !Subject::is_reported(lease) || !self.board.watches(&subject) {
            return Ok(());
        }
        let mut facts = self.board.facts(lease, &seen).await?.with_detail(detail);
        if self.board.rules().iter().any(|rule| rule.on.has(Cause::Fenced)) {
            facts = facts.with_fenced(coordinator.counters(lease).await?.get(Event::Fenced), refused);
        }
        self.board.judge(&subject, &facts).await
    }

    /// Judges a queue or a spool of which an item became a dead letter.
    pub async fn dead_letter(&self, subject: &Subject, letter: DeadLetter) {
        bounded(Named::of(subject), self.board.judge(subject, &Facts::of_queue(vec![letter]))).await;
    }

    /// Checks every lease and every published job, on whichever machine it ran, or if it did not run at all.
    pub async fn sweep(&self) -> Result<()> {
        self.board.sweep().await
    }

    /// Delivers what waits, until then at most.
    pub async fn deliver_until(&self, until: Moment) {
        let all = self.targets.iter().map(|(channel, target)| async move {
            let _ = self.deliver(channel, target, until, LEAST).await;
        });
        let left = until.saturating_since(SystemClock.now());
        let _ = tokio::time::timeout(left, futures_all(all)).await;
    }

    /// Delivers messages, and looks for failures that nobody reported, until it is dropped.
    pub fn in_background(&self, beat: Beat) -> Background {
        let mut tasks = Vec::new();
        for (channel, target) in self.targets.iter() {
            let (notifier, channel, target) = (self.clone(), channel.clone(), target.clone());
            tasks.push(tokio::spawn(async move { notifier.keep_delivering(&channel, &target).await }));
        }
        let notifier = self.clone();
        tasks.push(tokio::spawn(async move { notifier.keep_looking(&beat).await }));
        Background(tasks)
    }

    async fn keep_delivering(&self, channel: &Channel, target: &Target) {
        let mut purge = SystemClock.now() + LOOK;
        let mut trouble = Vec::new();
        loop {
            // Each delivery gets all of its time, whatever those before it took.
            let delivered = self.deliver(channel, target, SystemClock.now() + CLAIM, DELIVERY).await;
            let what = format!("cannot deliver notifications of channel `{}`", channel.as_str());
            say_once(&mut trouble, &what, delivered);
            if SystemClock.now() >= purge {
                purge = SystemClock.now() + PURGE;
                if let Ok(queue) = self.board.queue(channel) {
                    let _ = queue.purge(KEPT, |_| true).await;
                }
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    async fn keep_looking(&self, beat: &Beat) {
        let mut trouble = Vec::new();
        loop {
            let begun = SystemClock.now();
            let (done, pause) = match beat {
                Beat::Jobs => (self.sweep().await, SWEEP),
                Beat::Queue(subject, queue) => (self.board.sweep_letters(subject, queue).await, SWEEP_QUEUE),
                Beat::Spool(subject, spool) => (self.board.sweep_letters(subject, spool).await, SWEEP_QUEUE),
            };
            say_once(&mut trouble, "cannot look for what is down", done);
            let took = SystemClock.now().saturating_since(begun);
            tokio::time::sleep(pause.max(took * SHARE)).await;
        }
    }

    /// Delivers the messages that may be claimed now, as long as there is at least this much time for each.
    async fn deliver(&self, channel: &Channel, target: &Target, until: Moment, least: Duration) -> Result<()> {
        let queue = self.board.queue(channel)?;
        let mut claimer = Claimer::new(queue.clone(), None, Ttl::new(CLAIM)?)?;
        loop {
            if time_for_one(until.saturating_since(SystemClock.now()), least).is_none() {
                return Ok(());
            }
            let grant = match claimer.claim().await? {
                Claimed::Item(grant) => *grant,
                Claimed::Nothing { .. } => return Ok(()),
            };
            let left = until.saturating_since(SystemClock.now());
            let limit = time_for_one(left, least).unwrap_or(least);
            deliver_one(&queue, &grant, channel, target, limit).await?;
        }
    }
}

/// How long a delivery may take when this much time is left; none if that is less than the minimum.
fn time_for_one(left: Duration, least: Duration) -> Option<Duration> {
    let limit = left.saturating_sub(LAST_WORD).min(DELIVERY);
    (limit >= least).then_some(limit)
}

async fn deliver_one(
    queue: &Queue,
    grant: &ItemGrant,
    channel: &Channel,
    target: &Target,
    limit: Duration,
) -> Result<()> {
    let Ok(notice) = serde_json::from_slice::<Notice>(grant.item().payload.bytes()) else {
        let why = Reason::lossy("it is no notification", "it is no notification");
        return queue.fail(grant, why, None, true).await.map(drop);
    };
    if let Some(wait) = wait_for_earlier(queue, &notice).await? {
        return queue.postpone(grant, wait).await.map(drop);
    }
    match target.deliver(&notice, limit).await {
        Ok(()) => queue.complete(grant, None, Vec::new()).await.map(drop),
        Err(NotTaken { error, is_final, retry_in }) => {
            let item = grant.item();
            let is_last = is_final || item.tried >= item.attempts.most;
            let again = if is_last { "; it is given up" } else { "; it will be retried" };
            let (id, name, channel) = (&notice.id, notice.name(), channel.as_str());
            let (lease, about) = Named::in_notice(&notice).fields();
            tracing::warn!(
                lease, queue = about, notification = %id, channel, %error,
                "notification {id} about `{name}` was not delivered to channel `{channel}`{again}: {error}"
            );
            queue
                .fail(grant, Reason::lossy(&error.to_string(), "not delivered"), pause(item, retry_in), is_final)
                .await
                .map(drop)
        }
    }
}

/// How long until the next try. A receiver may ask for more time, never for less: otherwise it would use up all tries while it
/// restarts.
fn pause(item: &Item, asked: Option<Duration>) -> Option<Duration> {
    asked.map(|asked| asked.max(item.attempts.pause(item.tried)))
}

/// How long a message waits for the one before it about the same name: otherwise it would be heard that a job is back, and then
/// that it is down. None if that one has arrived, or never will.
async fn wait_for_earlier(queue: &Queue, notice: &Notice) -> Result<Option<Duration>> {
    let mut after = notice.after.clone();
    for _ in 0..MAX_WITHDRAWN {
        let Some(key) = after.take().and_then(|after| after.parse().ok()) else { return Ok(None) };
        let seen = match queue.inspect(&ItemId::keyed(&key)).await {
            // It was delivered, and removed since.
            Err(error) if error.kind() == Kind::Invalid => return Ok(None),
            seen => seen?,
        };
        match seen.item.state {
            State::Ready => {
                let due = seen.item.due.map_or(Duration::ZERO, |due| due.saturating_since(seen.now));
                return Ok(Some(due + IN_TURN));
            }
            State::Claimed(_) => return Ok(Some(IN_TURN)),
            // A reminder that a newer one has replaced: what it waited for comes first.
            State::Cancelled { .. } => {
                let withdrawn: Option<Notice> = serde_json::from_slice(seen.item.payload.bytes()).ok();
                after = withdrawn.and_then(|withdrawn| withdrawn.after);
            }
            State::Done { .. } | State::Dead { .. } | State::Purged { .. } => return Ok(None),
        }
    }
    Ok(None)
}

/// What is looked at in the background.
#[derive(Debug, Clone)]
pub enum Beat {
    /// Every lease and every published job.
    Jobs,
    /// The dead letters of a queue: a worker that died with its item says nothing.
    Queue(Subject, Queue),
    /// Those of a spool.
    Spool(Subject, Spool),
}

/// What runs beside other work. It ends when this is dropped.
#[derive(Debug)]
pub struct Background(Vec<tokio::task::JoinHandle<()>>);

impl Drop for Background {
    fn drop(&mut self) {
        self.0.iter().for_each(|task| task.abort());
    }
}

/// Sends a test event to a channel, once.
pub async fn try_out(channel: &Channel, target: &Target) -> Result<()> {
    let now = Timestamp::from_millis(leasehold_system::clock::wall_ms());
    let notice = Notice::test(channel, &leasehold_system::host::name(), now);
    target.deliver(&notice, DELIVERY).await.map_err(|NotTaken { error, .. }| error)
}

/// The store's address without its password, for readers of a message on another machine.
pub fn location(settings: &Settings) -> StoreLocation {
    let store = &settings.store;
    let is_default = matches!(store.source, Source::Default);
    let shown = (!is_default).then(|| store.value.to_string());
    StoreLocation { store: shown, host: Some(leasehold_system::host::name()), is_local: store.value.path().is_some() }
}

/// What a line of the log is about.
#[derive(Debug, Clone, Copy)]
enum Named<'a> {
    Lease(&'a str),
    /// A queue, or `spool:` and its folder.
    Queue(&'a str),
}

impl<'a> Named<'a> {
    fn of(subject: &'a Subject) -> Self {
        match subject {
            Subject::Job(_) | Subject::Lease(_) => Named::Lease(subject.name()),
            Subject::Queue(_) | Subject::Spool(..) => Named::Queue(subject.name()),
        }
    }

    fn in_notice(notice: &'a Notice) -> Self {
        match notice.body["data"]["subject"] == "queue" {
            true => Named::Queue(notice.name()),
            false => Named::Lease(notice.name()),
        }
    }

    /// The fields `lease` and `queue`, of which one is there.
    const fn fields(self) -> (Option<&'a str>, Option<&'a str>) {
        match self {
            Named::Lease(name) => (Some(name), None),
            Named::Queue(name) => (None, Some(name)),
        }
    }
}

/// Judges within a short time. What could not be judged is found by the next process that looks.
async fn bounded(named: Named<'_>, judging: impl Future<Output = Result<()>>) {
    let (Named::Lease(name) | Named::Queue(name)) = named;
    let error = match tokio::time::timeout(PATIENCE, judging).await {
        Ok(Ok(())) => return,
        Ok(Err(error)) => error.to_string(),
        Err(_) => "the store does not answer".to_owned(),
    };
    let (lease, queue) = named.fields();
    tracing::warn!(
        lease,
        queue,
        error,
        "could not check whether to notify about `{name}`: {error}; the next look will"
    );
}

/// Says what goes wrong, each thing once until all goes well again.
fn say_once(said: &mut Vec<String>, what: &str, done: Result<(), Error>) {
    let Err(error) = done else {
        said.clear();
        return;
    };
    let error = error.to_string();
    if said.len() < MAX_SAID && !said.contains(&error) {
        tracing::warn!(error, "{what}; retrying: {error}");
        said.push(error);
    }
}

/// All of them at once.
async fn futures_all(all: impl Iterator<Item = impl Future<Output = ()>>) {
    let mut all: Vec<_> = all.map(Box::pin).collect();
    std::future::poll_fn(|context| {
        all.retain_mut(|one| one.as_mut().poll(context).is_pending());
        if all.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use leasehold_core::Lineage;
    use leasehold_work::queue::{Attempts, Payload, Priority};

    #[test]
    fn a_delivery_in_the_background_gets_all_of_its_time_or_is_left_for_the_next_round() {
        let seconds = Duration::from_secs_f64;
        assert_eq!(time_for_one(CLAIM, DELIVERY), Some(DELIVERY));
        assert_eq!(time_for_one(seconds(1.9), DELIVERY), None);
        // After a run there is no next round.
        assert_eq!(time_for_one(AFTER_RUN, LEAST), Some(seconds(4.5)));
        assert_eq!(time_for_one(seconds(1.4), LEAST), None);
    }

    #[test]
    fn what_goes_wrong_is_said_once_and_something_else_again() {
        let mut said = Vec::new();
        let error = |text: &str| Err(Error::new(Kind::Unavailable, text.to_owned()));
        for text in ["a", "a", "b", "a"] {
            say_once(&mut said, "cannot", error(text));
        }
        assert_eq!(said, ["a", "b"]);
        (0..99).for_each(|number| say_once(&mut said, "cannot", error(&number.to_string())));
        assert_eq!(said.len(), MAX_SAID);
        say_once(&mut said, "cannot", Ok(()));
        assert!(said.is_empty());
    }

    /// Collects the fields of every line.
    #[derive(Clone, Default)]
    struct Fields(Arc<std::sync::Mutex<Vec<String>>>);

    impl tracing::field::Visit for Fields {
        fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
            self.0.lock().unwrap().push(format!("{}={value:?}", field.name()));
        }
    }

    impl tracing::Subscriber for Fields {
        fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
            true
        }

        fn event(&self, event: &tracing::Event<'_>) {
            event.record(&mut self.clone());
        }

        fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
            tracing::span::Id::from_u64(1)
        }

        fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

        fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

        fn enter(&self, _: &tracing::span::Id) {}

        fn exit(&self, _: &tracing::span::Id) {}
    }

    #[tokio::test]
    async fn what_could_not_be_judged_is_logged_as_the_lease_or_the_queue_that_it_is() {
        let spool = Subject::Spool(Lineage::random(), "spool:/mail".into());
        let queue = Subject::Queue("mail".parse().unwrap());
        let lease = Subject::Lease(LeaseName::new("nightly").unwrap());
        for (subject, expected) in
            [(spool, "queue=\"spool:/mail\""), (queue, "queue=\"mail\""), (lease, "lease=\"nightly\"")]
        {
            let fields = Fields::default();
            let guard = tracing::subscriber::set_default(fields.clone());
            bounded(Named::of(&subject), async { Err(Error::new(Kind::Unavailable, "away")) }).await;
            drop(guard);
            let fields = fields.0.lock().unwrap().clone();
            let named = |field: &&String| ["lease=", "queue="].iter().any(|name| field.starts_with(name));
            assert_eq!(fields.iter().filter(named).collect::<Vec<_>>(), [expected], "{fields:?}");
        }
    }

    #[test]
    fn a_receiver_that_asks_for_little_time_does_not_use_up_the_tries() {
        let (now, attempts) = (Timestamp::from_millis(1), Attempts { most: 30, backoff_ms: 5_000 });
        let payload = Payload::new("x").unwrap();
        let mut item = Item::new(Lineage::random(), payload, Priority::default(), attempts, now, None);
        item.tried = 3;
        assert_eq!(pause(&item, None), None, "the queue's own pauses");
        assert_eq!(pause(&item, Some(Duration::from_secs(1))), Some(Duration::from_secs(20)));
        assert_eq!(pause(&item, Some(Duration::from_secs(600))), Some(Duration::from_secs(600)));
    }
}
