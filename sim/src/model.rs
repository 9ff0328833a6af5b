//! The model: what each action does to a world.
//!
//! Promise: actors do what the coordinator does (read, decide, swap on the revision that was read, look again when
//! there is no answer), the store does what a store must (compare and set); each step is judged by the promises as it
//! is made. What reaches a guard is in `resource.rs`. Non-promise: an actor's trust in its own clock is not modelled, because
//! safety may not depend on it: whoever ever held a token may write at any later time.

use crate::actions::{Action, Fate, heir_name};
use crate::archive::{Archive, No, RecordId, Time, Verdict};
use crate::ask::{self, Ask, End, Name};
use crate::config::Config;
use crate::promises::{Promise, Sighting, Sightings};
use crate::rules::{Belief, Rules};
use crate::world::{ACTORS, Actor, Backup, Flight, Left, NAMES, Pursuit, SLOTS, World};
use leasehold_core::{LeaseName, Ownership, Reason, SlotMark, SlotState};
use stateright::{Model, Property};

/// A configuration, the rules it runs by, and what was met on the way.
#[derive(Debug)]
pub struct LeaseModel {
    pub(crate) config: Config,
    pub(crate) archive: Archive,
    pub(crate) sightings: Sightings,
    pub(crate) rules: Rules,
    pub(crate) lease: LeaseName,
    pub(crate) other_lease: LeaseName,
}

impl LeaseModel {
    /// A model within these bounds.
    pub(crate) fn new(config: Config, rules: Rules) -> leasehold_core::Result<Self> {
        assert!(usize::from(heir_name(&config, config.orders_given)) < NAMES, "a name for every request");
        Ok(LeaseModel {
            archive: Archive::new(rules, config.transfers_kept),
            sightings: Sightings::default(),
            rules,
            lease: "job".parse()?,
            other_lease: "other".parse()?,
            config,
        })
    }

    pub(crate) fn see(&self, sighting: Sighting) {
        self.sightings.note(sighting);
    }

    /// Does it; false when it cannot be done.
    fn step(&self, world: &mut World, action: Action) -> bool {
        match action {
            Action::Begin { actor, ask, time } => {
                if matches!(ask, Ask::Acquire { .. } | Ask::Operate { .. }) {
                    world.actors[actor].turn += 1;
                    world.actors[actor].over = false;
                }
                world.actors[actor].pursuit = Some(Pursuit { ask, waiting: false, unanswered: false });
                if !self.look(world, actor, time) {
                    return false;
                }
                let sent = world.actors[actor].pursuit.is_some();
                if sent && matches!(ask, Ask::Renew(_) | Ask::Checkpoint(_)) {
                    world.left.renewals -= 1;
                }
                true
            }
            Action::Look { actor, time } => self.look(world, actor, time),
            Action::Deliver { flight, fate } => self.deliver(world, flight, fate),
            Action::GiveUp { actor } => {
                world.left.losses -= 1;
                let next = world.flights.iter().flatten().find(|f| f.awaited && usize::from(f.actor) == actor);
                let next = next.map(|f| f.next);
                world.stop_awaiting(actor);
                self.hear_nothing(world, actor, next);
                true
            }
            Action::Abandon { actor } => {
                let Some(pursuit) = world.actors[actor].pursuit.take() else { return false };
                // Not knowing whether it was granted, it must not act as if it was.
                world.actors[actor].over |= !matches!(pursuit.ask, Ask::Renew(_) | Ask::Checkpoint(_));
                true
            }
            Action::Seal { name, guard } => self.seal(world, name, guard),
            Action::Write { name, guard, seq } => self.write(world, name, guard, seq),
            Action::Foreign { guard } => self.write_foreign(world, guard),
            Action::Copy => {
                world.backup = Backup::Taken { record: world.record, revision: world.revision };
                true
            }
            Action::Restore => {
                let Backup::Taken { record, revision } = world.backup else { return false };
                if record == world.record {
                    return false;
                }
                (world.record, world.revision) = (record, revision);
                world.backup = Backup::Restored;
                self.compare_guards_with_store(world);
                true
            }
        }
    }

    /// Reads, decides and sends, as `Coordinator::apply` does in one round.
    fn look(&self, world: &mut World, actor: usize, time: Time) -> bool {
        let Some(pursuit) = world.actors[actor].pursuit else { return false };
        let ask = pursuit.ask;
        match self.archive.decide(world.record, ask, time) {
            Verdict::Write(next) => {
                let in_flight = world.flights.iter().flatten().count();
                let expected = world.revision;
                let flight = Flight { actor: actor as u8, ask, awaited: true, expected, next };
                if in_flight >= usize::from(self.config.flights) || !world.send(flight) {
                    return false;
                }
                world.actors[actor].pursuit = Some(Pursuit { waiting: true, ..pursuit });
                if self.archive.record(world.record).tenure.is_some() {
                    match (ask, time) {
                        (Ask::Acquire { .. }, Time::Early) => breaks(world, Promise::LiveTenureStays),
                        (Ask::Renew(_), Time::Late) => breaks(world, Promise::OnlyTheHolder),
                        _ => {}
                    }
                }
                let is_drained = self.archive.record(world.record).drain.is_some();
                match (ask, time) {
                    (Ask::Acquire { .. }, Time::Early) if is_drained => breaks(world, Promise::DrainKeepsOut),
                    (Ask::Acquire { .. }, Time::Late) if is_drained => self.see(Sighting::GrantedAfterDrain),
                    (Ask::Renew(_), _) if is_drained => self.see(Sighting::AskedHolderRenewed),
                    _ => {}
                }
            }
            Verdict::AlreadyApplied => {
                self.see(Sighting::FoundApplied);
                if pursuit.unanswered && matches!(ask, Ask::Acquire { .. }) {
                    self.see(Sighting::LostGrantFound);
                }
                self.conclude_applied(world, actor, world.record);
            }
            Verdict::Refuse(No::AlreadyReleased) if pursuit.unanswered => {
                self.see(Sighting::LostReleaseFound);
                self.conclude_applied(world, actor, world.record);
            }
            Verdict::Refuse(no) => self.conclude_refused(world, actor, no),
        }
        true
    }

    fn deliver(&self, world: &mut World, index: usize, fate: Fate) -> bool {
        let Some(flight) = world.receive(index) else { return false };
        let applies = self.rules.swap_applies(flight.expected, world.revision);
        if fate == Fate::Doubled {
            world.left.copies -= 1;
            if !applies || !world.send(Flight { awaited: false, ..flight }) {
                return false;
            }
        }
        if applies {
            self.apply(world, flight);
        } else {
            self.see(Sighting::LateSwapRefused);
        }
        if !flight.awaited {
            return true;
        }
        let actor = usize::from(flight.actor);
        if fate == Fate::AnswerLost {
            world.left.losses -= 1;
            self.hear_nothing(world, actor, Some(flight.next));
        } else if applies || self.rules.after_mismatch() == Belief::Applied {
            self.conclude_applied(world, actor, flight.next);
        } else if let Some(pursuit) = &mut world.actors[actor].pursuit {
            pursuit.waiting = false;
        }
        true
    }

    fn hear_nothing(&self, world: &mut World, actor: usize, next: Option<RecordId>) {
        let Some(pursuit) = &mut world.actors[actor].pursuit else { return };
        pursuit.waiting = false;
        pursuit.unanswered = true;
        let is_release = matches!(pursuit.ask, Ask::Release(..));
        if let (Belief::Applied, Some(next)) = (self.rules.after_no_answer(is_release), next) {
            self.conclude_applied(world, actor, next);
        }
    }

    /// The store replaces its record.
    fn apply(&self, world: &mut World, flight: Flight) {
        let before = self.archive.record(world.record);
        let after = self.archive.record(flight.next);
        if flight.expected != world.revision {
            breaks(world, Promise::SwapIsAtomic);
        }
        if !world.rolled_back() {
            self.judge(world, flight.ask, &before, &after);
        }
        let epoch = ask::number(after.epoch);
        if let Ask::Operate { command: ask::Command::Advance { past }, .. } = flight.ask
            && epoch <= past
        {
            breaks(world, Promise::AdvanceGoesPast);
        }
        if let Some(name) = flight.ask.transfers_as() {
            let name = usize::from(name);
            let bit = 1 << epoch.min(15);
            if world.granted.iter().enumerate().any(|(other, epochs)| other != name && epochs & bit != 0) {
                self.see(Sighting::EpochIssuedTwice);
            }
            world.granted[name] |= bit;
        }
        self.see_transfer(flight.ask, &before, &after);
        if let Ask::Release(title, End::Succeeded) | Ask::Complete(title, End::Succeeded) = flight.ask
            && let Some(mark) = before.slot.filter(|mark| mark.state == SlotState::Running)
            && (mark.epoch == title.claim().epoch || after.slot.is_some_and(|mark| mark.state == SlotState::Done))
        {
            self.accept(world, title.name, mark, &after);
        }
        world.top_epoch = world.top_epoch.max(epoch);
        world.record = flight.next;
        world.revision = world.revision.saturating_add(1);
        self.compare_guards_with_store(world);
    }

    /// The promises about the store's record, which a store that went back cannot keep.
    fn judge(&self, world: &mut World, ask: Ask, before: &Ownership, after: &Ownership) {
        let transfers = ask.transfers_as();
        let advanced = after.epoch > before.epoch;
        if transfers.is_some() != advanced || after.epoch < before.epoch {
            breaks(world, Promise::TransfersAdvance);
        }
        if ask.grants_to().is_some() && ask::number(after.epoch) <= world.top_epoch {
            breaks(world, Promise::EpochsIncrease);
        }
        if transfers.is_some_and(|name| world.granted[usize::from(name)] != 0) && !self.config.forgets() {
            breaks(world, Promise::AppliedOnce);
        }
        if ask.title().is_some_and(|title| !before.is_held_by(title.claim())) {
            breaks(world, Promise::OnlyTheHolder);
        }
        if matches!(ask, Ask::Operate { command: ask::Command::Drain, .. }) && after.tenure != before.tenure {
            breaks(world, Promise::DrainTakesNothing);
        }
        if let Ask::Acquire { slot, .. } = ask {
            if before.paused.is_some() {
                breaks(world, Promise::PauseHolds);
            }
            if slot > 0 && world.accepted[usize::from(slot)..].iter().any(|name| *name != 0) {
                breaks(world, Promise::DoneSlotStaysDone);
            }
        }
    }

    fn see_transfer(&self, ask: Ask, before: &Ownership, after: &Ownership) {
        match ask {
            Ask::Acquire { .. } if before.tenure.is_some() => self.see(Sighting::GrantedAfterExpiry),
            Ask::Acquire { .. } if after.transfers.last().is_some_and(|t| t.reason == Reason::Released) => {
                self.see(Sighting::GrantedAfterRelease);
            }
            Ask::Operate { .. } if before.tenure.is_some() && after.epoch > before.epoch => {
                self.see(Sighting::OperatorEvicted);
            }
            _ => {}
        }
    }

    /// An actor learns, or believes, that its request was applied and made this record.
    fn conclude_applied(&self, world: &mut World, actor: usize, made: RecordId) {
        let Some(pursuit) = world.actors[actor].pursuit.take() else { return };
        let made = self.archive.record(made);
        if let Some(name) = pursuit.ask.grants_to() {
            // The coordinator makes the token out of the record's epoch and the request's nonce.
            let epoch = ask::number(made.epoch);
            world.tokens[usize::from(name)] = epoch;
            if world.granted[usize::from(name)] & (1 << epoch.min(15)) == 0 {
                breaks(world, Promise::GrantedIsGranted);
            }
        }
        match pursuit.ask {
            Ask::Release(title, end) => {
                world.actors[actor].over = true;
                if !world.rolled_back() && self.archive.record(world.record).is_held_by(title.claim()) {
                    breaks(world, Promise::ReleasedIsReleased);
                }
                let own = made.slot.filter(|mark| mark.epoch == title.claim().epoch && mark.state == SlotState::Done);
                if let Some(mark) = own.filter(|_| end == End::Succeeded) {
                    self.accept(world, title.name, mark, &made);
                }
            }
            Ask::Complete(title, End::Succeeded) => {
                if let Some(mark) = made.slot.filter(|mark| mark.state == SlotState::Done) {
                    self.accept(world, title.name, mark, &made);
                }
            }
            _ => {}
        }
    }

    /// A completion was accepted, by the store or in the eyes of the one who sent it.
    fn accept(&self, world: &mut World, name: Name, mark: SlotMark, record: &Ownership) {
        let slot = usize::try_from(mark.slot.0.as_millis()).unwrap_or(0).min(SLOTS - 1);
        let accepted = world.accepted[slot];
        if accepted != 0 && accepted != name && !world.rolled_back() {
            breaks(world, Promise::OneCompletion);
        }
        world.accepted[slot] = name;
        if self.config.orders_given > 0 && name >= heir_name(&self.config, 1) {
            self.see(Sighting::HeirCompleted);
        }
        if record.transfers.iter().any(|t| t.epoch == mark.epoch && t.reason == Reason::Recovered) {
            self.see(Sighting::DeadRunRecovered);
        }
    }

    fn conclude_refused(&self, world: &mut World, actor: usize, no: No) {
        let Some(pursuit) = world.actors[actor].pursuit.take() else { return };
        // A completion that has no slot, or contradicts the first, is a mistake and not a loss.
        let mistake = no == No::Other || (no == No::AlreadyRun && pursuit.ask.title().is_some());
        match no {
            No::Held => self.see(Sighting::HeldRefused),
            No::Paused => self.see(Sighting::PauseRefused),
            No::Draining => self.see(Sighting::DrainRefused),
            No::AlreadyRun if !mistake => self.see(Sighting::SlotRefused),
            No::Lost if pursuit.ask.title().is_some() => self.see(Sighting::LoserRefused),
            No::AlreadyReleased => self.see(Sighting::SecondReleaseRefused),
            No::AlreadyRun | No::Lost | No::Other => {}
        }
        world.actors[actor].over |= !mistake;
    }

    pub(crate) fn compare_guards_with_store(&self, world: &mut World) {
        let highest = world.fences.iter().filter_map(|f| f.high).map(|high| high.epoch).max().unwrap_or(0);
        if highest > ask::number(self.archive.record(world.record).epoch) {
            if world.rolled_back() {
                self.see(Sighting::GuardAhead);
            } else {
                breaks(world, Promise::GuardNotAhead);
            }
        }
    }
}

pub(crate) fn breaks(world: &mut World, promise: Promise) {
    world.broken |= promise.bit();
}

impl Model for LeaseModel {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World {
            record: self.archive.blank(),
            revision: 0,
            top_epoch: 0,
            backup: if self.config.rollback { Backup::NotTaken } else { Backup::NotAllowed },
            actors: [Actor::default(); ACTORS],
            flights: Default::default(),
            tokens: [0; NAMES],
            granted: [0; NAMES],
            fences: Default::default(),
            accepted: [0; SLOTS],
            left: Left { losses: self.config.losses, copies: self.config.copies, renewals: self.config.renewals },
            broken: 0,
        }]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        self.offer(world, actions);
    }

    fn next_state(&self, last: &World, action: Action) -> Option<World> {
        let mut world = *last;
        (self.step(&mut world, action) && world != *last).then_some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        crate::promises::properties(&self.config, &self.sightings)
    }
}
