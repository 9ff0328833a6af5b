//! Dead letters: whoever wants to hear of them is told, in the background.

use crate::context::{Open, Target as Place};
use crate::notify::{AFTER_RUN, Background, Beat, Notifier, Target};
use leasehold_core::Coordinator;
use leasehold_work::backlog::ItemView;
use leasehold_work::notify::{Rule, Subject};
use leasehold_work::tally::DeadLetter;
use std::sync::{Mutex, PoisonError};
use tokio::task::JoinHandle;

/// Who is told, and what is being told.
#[derive(Debug, Default)]
pub struct Obituaries {
    told: Option<(Notifier, Beat)>,
    telling: Mutex<Vec<JoinHandle<()>>>,
}

impl Obituaries {
    /// By these rules, of the dead letters of this queue or spool.
    pub fn new(coordinator: &Coordinator, rules: Vec<(Rule, Target)>, open: &Open, place: &Place) -> Self {
        let beat = match open {
            Open::Queue(queue) => Beat::Queue(Subject::Queue(queue.name().clone()), queue.clone()),
            Open::Spool(spool) => Beat::Spool(Subject::Spool(spool.lineage(), place.portable()), spool.clone()),
        };
        Obituaries { told: Notifier::new(coordinator, rules).map(|notifier| (notifier, beat)), ..Self::default() }
    }

    /// Delivers, and looks after the dead letters, until it is dropped.
    pub fn in_background(&self) -> Option<Background> {
        self.told.as_ref().map(|(notifier, beat)| notifier.in_background(beat.clone()))
    }

    /// Tells of an item if it has become a dead letter, with the last lines of its attempt.
    pub fn note(&self, seen: &ItemView, tail: Option<String>) {
        let Some((notifier, beat)) = &self.told else { return };
        let (subject, letter) = match (beat, seen) {
            (Beat::Queue(subject, _), ItemView::Item(name, item)) => (subject, DeadLetter::of(&name.id, item)),
            (Beat::Spool(subject, spool), ItemView::File(item)) => (subject, spool.dead_letter(item)),
            _ => return,
        };
        let Some(letter) = letter else { return };
        let letter = DeadLetter { tail, ..letter };
        let (notifier, subject) = (notifier.clone(), subject.clone());
        let telling = tokio::spawn(async move { notifier.dead_letter(&subject, letter).await });
        let mut all = self.telling.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|telling| !telling.is_finished());
        all.push(telling);
    }

    /// Waits for what is being told, which is bounded, and delivers for a while if nobody else stays to do it.
    pub async fn end(&self, delivers: bool) {
        let all = std::mem::take(&mut *self.telling.lock().unwrap_or_else(PoisonError::into_inner));
        for telling in all {
            let _ = telling.await;
        }
        if let Some((notifier, _)) = self.told.as_ref().filter(|_| delivers) {
            notifier.deliver_for(AFTER_RUN).await;
        }
    }
}
