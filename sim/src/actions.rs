//! Actions: everything that may happen next in a world.
//!
//! Promise: whatever the bounds of the configuration allow is offered, in a fixed order, so that a path can be
//! replayed from its indices. Non-promise: an action may turn out to change nothing; the model drops it then.

use crate::archive::Time;
use crate::ask::{Again, Ask, Command, End, Name, Title};
use crate::config::{Config, OrderKind};
use crate::model::LeaseModel;
use crate::world::{Backup, OPERATOR, World};
use leasehold_core::guard::Policy;

/// One thing that happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// An actor begins a request: it reads the record, decides on it, and sends a swap or knows the answer.
    Begin { actor: usize, ask: Ask, time: Time },
    /// An actor looks again, after a mismatch or for want of an answer.
    Look { actor: usize, time: Time },
    /// A swap reaches the store.
    Deliver { flight: usize, fate: Fate },
    /// An actor waits no longer; its swap may still arrive.
    GiveUp { actor: usize },
    /// An actor lets a request go whose fate it does not know.
    Abandon { actor: usize },
    /// A seal reaches a guard, at any time after the grant.
    Seal { name: Name, guard: usize },
    /// A write reaches a guard, at any time after the grant, in any order and any number of times.
    Write { name: Name, guard: usize, seq: u8 },
    /// A write under another lease reaches a guard.
    Foreign { guard: usize },
    /// A copy of the store is put aside.
    Copy,
    /// The store is restored from it.
    Restore,
}

/// What becomes of a swap's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    Answered,
    AnswerLost,
    /// Answered, and the swap will arrive once more.
    Doubled,
}

/// The name of a client's acquisition. Turns count from 1.
pub fn client_name(config: &Config, client: usize, turn: u8) -> Name {
    client as u8 * config.turns + turn
}

/// The name of an order.
pub fn order_name(config: &Config, turn: u8) -> Name {
    config.clients * config.turns + turn
}

/// The name of the holder whom an order installs.
pub fn heir_name(config: &Config, turn: u8) -> Name {
    order_name(config, config.orders_given) + turn
}

impl LeaseModel {
    /// Lists what may happen next.
    pub fn offer(&self, world: &World, actions: &mut Vec<Action>) {
        let record = self.archive.record(world.record);
        // Whether something in the record runs out.
        let held = record.tenure.is_some() || record.drain.is_some();
        let clients = usize::from(self.config.clients);
        for actor in (0..clients).chain([OPERATOR]) {
            match world.actors[actor].pursuit {
                None if actor == OPERATOR => self.offer_orders(world, held, actions),
                None => self.offer_requests(world, actor, held, actions),
                Some(pursuit) if pursuit.waiting => {
                    if world.left.losses > 0 {
                        actions.push(Action::GiveUp { actor });
                    }
                }
                Some(pursuit) => {
                    each_time(pursuit.ask, held, |time| actions.push(Action::Look { actor, time }));
                    if pursuit.unanswered {
                        actions.push(Action::Abandon { actor });
                    }
                }
            }
        }
        self.offer_deliveries(world, actions);
        self.offer_writes(world, actions);
        match world.backup {
            Backup::NotTaken => actions.push(Action::Copy),
            Backup::Taken { .. } => actions.push(Action::Restore),
            Backup::NotAllowed | Backup::Restored => {}
        }
    }

    fn offer_requests(&self, world: &World, actor: usize, held: bool, actions: &mut Vec<Action>) {
        let client = &world.actors[actor];
        let mut begin = |ask: Ask| each_time(ask, held, |time| actions.push(Action::Begin { actor, ask, time }));
        if (client.turn == 0 || client.over) && client.turn < self.config.turns {
            let name = client_name(&self.config, actor, client.turn + 1);
            if self.config.slots == 0 {
                begin(Ask::Acquire { name, slot: 0, after: Again::Leave });
            }
            for slot in 1..=self.config.slots {
                begin(Ask::Acquire { name, slot, after: Again::Leave });
                begin(Ask::Acquire { name, slot, after: Again::Retry });
            }
        }
        let name = client_name(&self.config, actor, client.turn);
        let epoch = if client.turn > 0 { world.tokens[usize::from(name)] } else { 0 };
        if epoch == 0 {
            return;
        }
        self.offer_as_holder(world, Title { name, epoch }, begin);
    }

    /// What a holder asks; also when it knows that it lost, for one that does not stop asking must be refused.
    fn offer_as_holder(&self, world: &World, title: Title, mut begin: impl FnMut(Ask)) {
        if world.left.renewals > 0 {
            begin(Ask::Renew(title));
            begin(Ask::Checkpoint(title));
        }
        begin(Ask::Release(title, End::Succeeded));
        if self.config.slots > 0 {
            begin(Ask::Release(title, End::Failed));
            begin(Ask::Complete(title, End::Succeeded));
            begin(Ask::Complete(title, End::Failed));
        }
    }

    fn offer_orders(&self, world: &World, held: bool, actions: &mut Vec<Action>) {
        let turn = world.actors[OPERATOR].turn + 1;
        // Whom the last order made the holder works on in the operator's place: it is one process that does both.
        let heir = heir_name(&self.config, turn - 1);
        let epoch = if turn > 1 { world.tokens[usize::from(heir)] } else { 0 };
        if epoch > 0 {
            self.offer_as_holder(world, Title { name: heir, epoch }, |ask| {
                each_time(ask, held, |time| actions.push(Action::Begin { actor: OPERATOR, ask, time }));
            });
        }
        if turn > self.config.orders_given {
            return;
        }
        let name = order_name(&self.config, turn);
        let past = world.fences.iter().filter_map(|f| f.high).map(|high| high.epoch).max().unwrap_or(0);
        let pause = self.archive.record(world.record).paused.as_ref().map_or(0, |mark| crate::ask::name(mark.nonce));
        for kind in self.config.orders {
            let command = match kind {
                OrderKind::Revoke => Command::Revoke,
                OrderKind::HandOff => Command::HandOff { to: heir_name(&self.config, turn) },
                OrderKind::Drain => Command::Drain,
                OrderKind::Pause => Command::Pause,
                OrderKind::Resume => Command::Resume { pause },
                OrderKind::Advance => Command::Advance { past },
            };
            let ask = Ask::Operate { name, command };
            each_time(ask, held, |time| actions.push(Action::Begin { actor: OPERATOR, ask, time }));
        }
    }

    fn offer_deliveries(&self, world: &World, actions: &mut Vec<Action>) {
        for (index, flight) in world.flights.iter().enumerate() {
            let Some(flight) = flight else { continue };
            actions.push(Action::Deliver { flight: index, fate: Fate::Answered });
            if flight.awaited && world.left.losses > 0 {
                actions.push(Action::Deliver { flight: index, fate: Fate::AnswerLost });
            }
            if world.left.copies > 0 {
                actions.push(Action::Deliver { flight: index, fate: Fate::Doubled });
            }
        }
    }

    fn offer_writes(&self, world: &World, actions: &mut Vec<Action>) {
        for guard in 0..usize::from(self.config.guards) {
            let writes = match self.config.policies[guard] {
                Policy::Ordered => self.config.writes,
                // The guard numbers these itself: one number stands for all.
                Policy::Reentrant | Policy::OncePerEpoch => 1,
            };
            for (name, _) in world.tokens.iter().enumerate().filter(|(_, epoch)| **epoch > 0) {
                let name = name as Name;
                actions.push(Action::Seal { name, guard });
                actions.extend((1..=writes).map(|seq| Action::Write { name, guard, seq }));
            }
            if world.fences[guard].high.is_some() {
                actions.push(Action::Foreign { guard });
            }
        }
    }
}

/// Both times where they can make a difference, one otherwise.
fn each_time(ask: Ask, held: bool, mut offer: impl FnMut(Time)) {
    offer(Time::Early);
    if held && ask.depends_on_time() {
        offer(Time::Late);
    }
}
