//! Notifications of dead letters, in the background.

use crate::config::Settings;
use crate::context::{Open, Target};
use crate::log;
use crate::notify::{AFTER_RUN, Background, Beat, Notifier, Told, location};
use leasehold_core::Coordinator;
use leasehold_core::clock::{Clock, SystemClock};
use leasehold_system::sync::Mutex;
use leasehold_work::backlog::{Expired, ItemView, OnExpired};
use leasehold_work::notify::Subject;
use leasehold_work::tally::DeadLetter;
use std::sync::Arc;
use tokio::task::JoinHandle;

/// The targets, and the messages that are being delivered.
#[derive(Debug, Default)]
pub struct Obituaries {
    told: Option<(Notifier, Beat)>,
    telling: Mutex<Vec<JoinHandle<()>>>,
}

impl Obituaries {
    /// By these rules, of the dead letters of this queue or spool.
    pub fn new(coordinator: &Coordinator, rules: Vec<Told>, settings: &Settings, open: &Open, target: &Target) -> Self {
        let beat = match open {
            Open::Queue(queue) => Beat::Queue(Subject::Queue(queue.name().clone()), queue.clone()),
            Open::Spool(spool) => Beat::Spool(Subject::Spool(spool.lineage(), target.portable()), spool.clone()),
        };
        let notifier = Notifier::new(coordinator, rules, location(settings));
        Obituaries { told: notifier.map(|notifier| (notifier, beat)), ..Self::default() }
    }

    /// Delivers, and looks after the dead letters, until it is dropped.
    pub fn in_background(&self) -> Option<Background> {
        self.told.as_ref().map(|(notifier, beat)| notifier.in_background(beat.clone()))
    }

    /// Tells of an item if it has become a dead letter, with the last lines of its attempt.
    pub fn note(&self, seen: &ItemView, tail: Option<String>) {
        let Some((notifier, beat)) = &self.told else { return };
        let (subject, letter) = match (beat, seen) {
            (Beat::Queue(subject, _), ItemView::Item(name, item, _)) => (subject, DeadLetter::of(&name.id, item)),
            (Beat::Spool(subject, spool), ItemView::File(item)) => (subject, spool.dead_letter(item)),
            _ => return,
        };
        let Some(letter) = letter else { return };
        let letter = DeadLetter { tail, ..letter };
        let (notifier, subject) = (notifier.clone(), subject.clone());
        let telling = tokio::spawn(async move { notifier.dead_letter(&subject, letter).await });
        let mut all = self.telling.lock();
        all.retain(|telling| !telling.is_finished());
        all.push(telling);
    }

    /// Logs claims whose workers died, and tells of what became a dead letter by that.
    pub fn expiry_callback(self: &Arc<Self>, queue: &str) -> OnExpired {
        let (obituaries, queue) = (self.clone(), queue.to_owned());
        OnExpired::new(move |Expired { id, epoch, seen }| {
            let (fate, outcome) =
                if seen.is_dead() { ("it is a dead letter now", "dead_letter") } else { ("it is tried again", "lost") };
            tracing::warn!(
                target: log::RUNS, queue, item = %id, epoch = epoch.get(), outcome,
                "item `{id}` of `{queue}` was lost under epoch {epoch}, its worker died or was away for too long; {fate}"
            );
            obituaries.note(&seen, None);
        })
    }

    /// Waits for what is being told, which is bounded, and delivers for a while if nobody else stays to do it.
    pub async fn end(&self, delivers: bool) {
        let all = std::mem::take(&mut *self.telling.lock());
        for telling in all {
            let _ = telling.await;
        }
        if let Some((notifier, _)) = self.told.as_ref().filter(|_| delivers) {
            notifier.deliver_until(SystemClock.now() + AFTER_RUN).await;
        }
    }
}
