//! Dead letters: whoever wants to hear of them is told, in the background.

use crate::notify::{AFTER_RUN, Background, Beat, Notifier, Target};
use leasehold_core::Coordinator;
use leasehold_work::backlog::ItemView;
use leasehold_work::notify::{DeadLetter, Rule};
use leasehold_work::queue::Queue;
use std::sync::{Mutex, PoisonError};
use tokio::task::JoinHandle;

/// Who is told, and what is being told. For a spool, which is in no store, nobody is.
#[derive(Debug, Default)]
pub struct Obituaries {
    notifier: Option<Notifier>,
    telling: Mutex<Vec<JoinHandle<()>>>,
}

impl Obituaries {
    /// By these rules.
    pub fn new(coordinator: &Coordinator, rules: Vec<(Rule, Target)>) -> Self {
        Obituaries { notifier: Notifier::new(coordinator, rules), telling: Mutex::default() }
    }

    /// Delivers, and looks after the dead letters of this queue, until it is dropped.
    pub fn in_background(&self, queue: &Queue) -> Option<Background> {
        self.notifier.as_ref().map(|notifier| notifier.in_background(Beat::Queue(queue.clone())))
    }

    /// Tells of an item if it has become a dead letter, with the last lines of its attempt.
    pub fn note(&self, seen: &ItemView, tail: Option<String>) {
        let (Some(notifier), ItemView::Item(name, item)) = (&self.notifier, seen) else { return };
        let Some(letter) = DeadLetter::of(name, item) else { return };
        let letter = DeadLetter { tail, ..letter };
        let (notifier, queue) = (notifier.clone(), name.queue.clone());
        let telling = tokio::spawn(async move { notifier.dead_letters(&queue, vec![letter]).await });
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
        if let Some(notifier) = self.notifier.as_ref().filter(|_| delivers) {
            notifier.deliver_for(AFTER_RUN).await;
        }
    }
}
