//! The guarded resources: what a seal or a write does when it arrives.
//!
//! Promise: the real `guard::seal` and `guard::admit` decide, on the high water that the resource remembers; what was
//! really applied is remembered apart from it, so that a guard is never judged by its own memory.
//! Non-promise: every guard here is atomic. Windows between check and write are each guard's own affair.

use crate::actions::heir_name;
use crate::ask::{self, Name};
use crate::model::{LeaseModel, breaks};
use crate::promises::{Promise, Sighting};
use crate::world::{Fence, Mark, World};
use leasehold_core::guard::{HighWater, Policy, Rejection};
use leasehold_core::{Reason, Token};

impl LeaseModel {
    fn token(&self, world: &World, name: Name, seq: u8) -> Token {
        let epoch = ask::epoch(world.tokens[usize::from(name)]);
        Token { lease: self.lease.clone(), lineage: ask::LINEAGE, epoch, nonce: ask::nonce(name), seq: u64::from(seq) }
    }

    fn high_water(&self, fence: &Fence) -> Option<HighWater> {
        fence.high.map(|mark| HighWater {
            lease: self.lease.clone(),
            lineage: ask::LINEAGE,
            epoch: ask::epoch(mark.epoch),
            nonce: ask::nonce(mark.name),
            seq: u64::from(mark.seq),
        })
    }

    pub(crate) fn seal(&self, world: &mut World, name: Name, guard: usize) -> bool {
        let token = self.token(world, name, 0);
        let high = self.high_water(&world.fences[guard]);
        match self.rules.seal(high.as_ref(), &token) {
            Ok(sealed) => {
                let fence = &mut world.fences[guard];
                fence.floor = fence.floor.max(ask::number(token.epoch));
                fence.high = Some(mark_of(&sealed));
                self.compare_guards_with_store(world);
            }
            Err(rejection) => self.judge_rejection(world, high.as_ref(), &token, &rejection),
        }
        true
    }

    pub(crate) fn write(&self, world: &mut World, name: Name, guard: usize, seq: u8) -> bool {
        let token = self.token(world, name, seq);
        let policy = self.config.policies[guard];
        let high = self.high_water(&world.fences[guard]);
        match self.rules.admit(high.as_ref(), &token, policy) {
            Ok(admitted) => {
                let epoch = ask::number(token.epoch);
                let Fence { floor, wrote, .. } = world.fences[guard];
                if epoch < floor {
                    breaks(world, Promise::NoLowerEpoch);
                }
                if epoch == wrote.epoch {
                    if name != wrote.name {
                        breaks(world, Promise::OneGrantPerEpoch);
                    } else if policy == Policy::Ordered && seq <= wrote.seq {
                        breaks(world, Promise::WritesInOrder);
                    } else if policy == Policy::OncePerEpoch {
                        breaks(world, Promise::OneWritePerEpoch);
                    }
                }
                let wrote = Mark { epoch, name, seq };
                world.fences[guard] = Fence { high: Some(mark_of(&admitted)), floor: floor.max(epoch), wrote };
                self.see_write(world, wrote, floor);
                self.compare_guards_with_store(world);
            }
            Err(rejection) => {
                match &rejection {
                    Rejection::Stale { .. } => {
                        self.see(Sighting::ZombieRefused);
                        if high.as_ref().is_some_and(|h| h.seq == 0) {
                            self.see(Sighting::SealAloneRefused);
                        }
                    }
                    Rejection::Replayed { .. } => self.see(Sighting::ReplayRefused),
                    Rejection::Spent { .. } => self.see(Sighting::SecondWriteRefused),
                    Rejection::Regressed { .. } => self.see(Sighting::RegressionTold),
                    _ => {}
                }
                self.judge_rejection(world, high.as_ref(), &token, &rejection);
            }
        }
        true
    }

    fn see_write(&self, world: &World, wrote: Mark, floor: u8) {
        if self.config.orders_given > 0 && wrote.name >= heir_name(&self.config, 1) {
            self.see(Sighting::HandedOffHolderWrote);
        }
        if world.rolled_back() {
            let record = self.archive.record(world.record);
            let healed = |epoch: u8| floor > 0 && epoch > floor && epoch < wrote.epoch;
            if record.transfers.iter().any(|t| t.reason == Reason::Advanced && healed(ask::number(t.epoch))) {
                self.see(Sighting::HealedByAdvance);
            }
        }
    }

    /// "Regressed" is said when, and only when, another grant of this very epoch was here.
    fn judge_rejection(&self, world: &mut World, high: Option<&HighWater>, token: &Token, rejection: &Rejection) {
        let twice = high.is_some_and(|high| high.epoch == token.epoch && high.nonce != token.nonce);
        let told = matches!(rejection, Rejection::Regressed { .. });
        if told != twice || (told && !world.rolled_back()) {
            breaks(world, Promise::RegressionIsDistinct);
        }
    }

    pub(crate) fn write_foreign(&self, world: &mut World, guard: usize) -> bool {
        let high = self.high_water(&world.fences[guard]);
        let lease = self.other_lease.clone();
        let token = Token { lease, lineage: ask::LINEAGE, epoch: ask::epoch(99), nonce: ask::nonce(99), seq: 99 };
        let admitted = self.rules.admit(high.as_ref(), &token, self.config.policies[guard]);
        let sealed = self.rules.seal(high.as_ref(), &token);
        match (admitted, sealed) {
            (Err(Rejection::Foreign { .. }), Err(Rejection::Foreign { .. })) => self.see(Sighting::ForeignRefused),
            _ => breaks(world, Promise::NoForeignToken),
        }
        true
    }
}

fn mark_of(high: &HighWater) -> Mark {
    Mark { epoch: ask::number(high.epoch), name: ask::name(high.nonce), seq: u8::try_from(high.seq).unwrap_or(u8::MAX) }
}
