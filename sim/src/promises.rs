//! The promises that are checked, and the sightings that prove that each was put to the test.
//!
//! Promise: every `always` has a `sometimes` twin; a promise whose case never came up counts as a failure, not as a
//! success. Non-promise: a sighting is counted for the whole exploration, it is no part of a state (or the states would
//! multiply by the ways they can be reached), so it comes with a count and not with a path.

use crate::check::Report;
use crate::config::Config;
use crate::model::LeaseModel;
use crate::world::World;
use stateright::Property;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What must hold in every state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Promise {
    /// S1.
    SwapIsAtomic,
    /// S2, for grants.
    EpochsIncrease,
    /// S2, for the record.
    TransfersAdvance,
    /// S3.
    NoLowerEpoch,
    /// S3, for tokens of another lease.
    NoForeignToken,
    /// S4.
    OneGrantPerEpoch,
    /// S5.
    WritesInOrder,
    /// S5, where one write is all there may be.
    OneWritePerEpoch,
    /// S6, for completions.
    OneCompletion,
    /// S6, for runs.
    DoneSlotStaysDone,
    /// S7.
    OnlyTheHolder,
    /// S7, seen from the holder.
    LiveTenureStays,
    /// S8, for grants.
    GrantedIsGranted,
    /// S8, for releases.
    ReleasedIsReleased,
    /// S8, for requests that are repeated.
    AppliedOnce,
    /// S9, as the guard tells it.
    RegressionIsDistinct,
    /// S9, as the store shows it.
    GuardNotAhead,
    /// S9, the cure.
    AdvanceGoesPast,
    /// An operator's pause.
    PauseHolds,
    /// An operator's request to finish.
    DrainKeepsOut,
    /// The same, seen from the holder.
    DrainTakesNothing,
}

/// What must be met in some state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sighting {
    /// A late or doubled swap is refused by its revision.
    LateSwapRefused,
    /// A lease is granted again after its deadline.
    GrantedAfterExpiry,
    /// A lease is granted again after its release.
    GrantedAfterRelease,
    /// An operator evicts a holder.
    OperatorEvicted,
    /// A zombie's write is refused as stale.
    ZombieRefused,
    /// A seal alone shuts a zombie out.
    SealAloneRefused,
    /// A token of another lease is refused.
    ForeignRefused,
    /// A restored store issues an epoch twice.
    EpochIssuedTwice,
    /// A delayed write is refused as replayed.
    ReplayRefused,
    /// A second write of an epoch is refused as spent.
    SecondWriteRefused,
    /// A dead run's slot is completed by another.
    DeadRunRecovered,
    /// A slot is refused as already run.
    SlotRefused,
    /// One who lost the lease is refused.
    LoserRefused,
    /// An acquirer is refused inside a live tenure.
    HeldRefused,
    /// A grant whose reply was lost is found by its nonce.
    LostGrantFound,
    /// A release whose reply was lost is found.
    LostReleaseFound,
    /// A request finds that it was applied before.
    FoundApplied,
    /// A guard tells that the store regressed.
    RegressionTold,
    /// A guard is ahead of a restored store.
    GuardAhead,
    /// A write is applied after advance healed the store.
    HealedByAdvance,
    /// An acquirer is refused by a pause.
    PauseRefused,
    /// An acquirer is refused while an operator waits for the holder.
    DrainRefused,
    /// A holder renews after it was asked to finish.
    AskedHolderRenewed,
    /// A lease is granted after a request to finish ran out.
    GrantedAfterDrain,
    /// A holder by hand-off writes.
    HandedOffHolderWrote,
    /// A second release changes nothing.
    SecondReleaseRefused,
    /// A slot that was handed off is completed by its new holder.
    HeirCompleted,
}

const SIGHTINGS: usize = 27;

/// Each promise, its name and its twin.
pub const PROMISES: [(Promise, &str, Sighting); 21] = {
    use Promise as P;
    use Sighting as S;
    [
        (P::SwapIsAtomic, "S1 a swap applies only on the revision it names", S::LateSwapRefused),
        (P::EpochsIncrease, "S2 granted epochs strictly increase", S::GrantedAfterExpiry),
        (P::TransfersAdvance, "S2 every transfer advances the epoch and nothing else does", S::OperatorEvicted),
        (P::NoLowerEpoch, "S3 a guard never applies a lower epoch", S::ZombieRefused),
        (P::NoForeignToken, "S3 a guard never admits a token of another lease", S::ForeignRefused),
        (P::OneGrantPerEpoch, "S4 one grant writes under one epoch", S::EpochIssuedTwice),
        (P::WritesInOrder, "S5 ordered writes of a tenure apply in order and once", S::ReplayRefused),
        (P::OneWritePerEpoch, "S5 a once-per-epoch guard applies one write per epoch", S::SecondWriteRefused),
        (P::OneCompletion, "S6 at most one completion of a slot is accepted", S::DeadRunRecovered),
        (P::DoneSlotStaysDone, "S6 a done slot or an earlier one is not granted again", S::SlotRefused),
        (P::OnlyTheHolder, "S7 only the holder renews, reports, completes and releases", S::LoserRefused),
        (P::LiveTenureStays, "S7 a live tenure ends by its holder or an operator", S::HeldRefused),
        (P::GrantedIsGranted, "S8 who concludes granted was granted that epoch", S::LostGrantFound),
        (P::ReleasedIsReleased, "S8 who concludes released holds no longer", S::LostReleaseFound),
        (P::AppliedOnce, "S8 one request makes at most one transfer", S::FoundApplied),
        (P::RegressionIsDistinct, "S9 an epoch issued twice is told as regressed, nothing else is", S::RegressionTold),
        (P::GuardNotAhead, "S9 a guard is ahead of the store only if the store went back", S::GuardAhead),
        (P::AdvanceGoesPast, "S9 advance goes past the number given", S::HealedByAdvance),
        (P::PauseHolds, "a paused lease gets no new holder", S::PauseRefused),
        (P::DrainKeepsOut, "a lease that an operator waits for gets no new holder", S::DrainRefused),
        (P::DrainTakesNothing, "asking a holder to finish takes nothing from it", S::AskedHolderRenewed),
    ]
};

/// Sightings that are no promise's twin, wanted all the same.
const EXTRA: [Sighting; 6] = [
    Sighting::GrantedAfterDrain,
    Sighting::GrantedAfterRelease,
    Sighting::SealAloneRefused,
    Sighting::HandedOffHolderWrote,
    Sighting::SecondReleaseRefused,
    Sighting::HeirCompleted,
];

impl Promise {
    pub(crate) const fn bit(self) -> u32 {
        1 << self as u32
    }

    /// The name as the checker prints it.
    pub fn name(self) -> &'static str {
        PROMISES[self as usize].1
    }

    /// Each promise and its twin over several explorations.
    pub fn table(reports: &[Report]) -> impl Iterator<Item = Row> {
        PROMISES.iter().map(|(promise, name, twin)| Row {
            promise: name,
            broken: reports.iter().any(|r| r.broken(*promise).is_some()),
            twin: twin.name(),
            met: reports
                .iter()
                .flat_map(|r| &r.sightings)
                .filter(|(s, _)| s == twin)
                .map(|(_, times)| *times)
                .reduce(|a, b| a + b),
        })
    }
}

/// A promise, its twin and what came of them.
#[derive(Debug)]
pub struct Row {
    /// The promise, as a sentence.
    pub promise: &'static str,
    /// Whether it was broken.
    pub broken: bool,
    /// The case that puts it to the test.
    pub twin: &'static str,
    /// How often that case came up; none where no configuration has what it takes.
    pub met: Option<u64>,
}

impl Sighting {
    /// All of them, twins in the order of their promises.
    pub fn all() -> impl Iterator<Item = Sighting> {
        PROMISES.iter().map(|(_, _, twin)| *twin).chain(EXTRA)
    }

    /// The name as the checker prints it.
    pub fn name(self) -> &'static str {
        match self {
            Sighting::LateSwapRefused => "a late or doubled swap is refused by its revision",
            Sighting::GrantedAfterExpiry => "a lease is granted again after its deadline",
            Sighting::GrantedAfterRelease => "a lease is granted again after its release",
            Sighting::OperatorEvicted => "an operator evicts a holder",
            Sighting::ZombieRefused => "a zombie's write is refused as stale",
            Sighting::SealAloneRefused => "a seal alone shuts a zombie out",
            Sighting::ForeignRefused => "a token of another lease is refused",
            Sighting::EpochIssuedTwice => "a restored store issues an epoch twice",
            Sighting::ReplayRefused => "a delayed write is refused as replayed",
            Sighting::SecondWriteRefused => "a second write of an epoch is refused as spent",
            Sighting::DeadRunRecovered => "a dead run's slot is completed by another",
            Sighting::SlotRefused => "a slot is refused as already run",
            Sighting::LoserRefused => "one who lost the lease is refused",
            Sighting::HeldRefused => "an acquirer is refused inside a live tenure",
            Sighting::LostGrantFound => "a grant whose reply was lost is found by its nonce",
            Sighting::LostReleaseFound => "a release whose reply was lost is found",
            Sighting::FoundApplied => "a request finds that it was applied before",
            Sighting::RegressionTold => "a guard tells that the store regressed",
            Sighting::GuardAhead => "a guard is ahead of a restored store",
            Sighting::HealedByAdvance => "a write is applied after advance healed the store",
            Sighting::PauseRefused => "an acquirer is refused by a pause",
            Sighting::DrainRefused => "an acquirer is refused while an operator waits for the holder",
            Sighting::AskedHolderRenewed => "a holder renews after it was asked to finish",
            Sighting::GrantedAfterDrain => "a lease is granted after a request to finish ran out",
            Sighting::HandedOffHolderWrote => "a holder by hand-off writes",
            Sighting::SecondReleaseRefused => "a second release changes nothing",
            Sighting::HeirCompleted => "a slot that was handed off is completed by its new holder",
        }
    }

    /// Whether a configuration has what it takes for it to happen.
    pub fn within_reach(self, config: &Config) -> bool {
        let has = |wanted| config.orders.contains(&wanted);
        use crate::config::OrderKind as O;
        match self {
            Sighting::OperatorEvicted => has(O::Revoke) || has(O::HandOff),
            Sighting::HandedOffHolderWrote => has(O::HandOff) && config.guards > 0,
            Sighting::HeirCompleted => has(O::HandOff) && config.slots > 0,
            Sighting::PauseRefused => has(O::Pause),
            Sighting::DrainRefused | Sighting::GrantedAfterDrain => has(O::Drain),
            Sighting::AskedHolderRenewed => has(O::Drain) && config.renewals > 0,
            Sighting::HealedByAdvance => has(O::Advance) && config.rollback && config.guards > 0,
            Sighting::EpochIssuedTwice => config.rollback,
            Sighting::RegressionTold | Sighting::GuardAhead => config.rollback && config.guards > 0,
            Sighting::DeadRunRecovered | Sighting::SlotRefused => config.slots > 0,
            Sighting::ZombieRefused | Sighting::SealAloneRefused | Sighting::ForeignRefused => config.guards > 0,
            Sighting::ReplayRefused => config.has_policy(leasehold_core::guard::Policy::Ordered),
            Sighting::SecondWriteRefused => config.has_policy(leasehold_core::guard::Policy::OncePerEpoch),
            Sighting::LostReleaseFound | Sighting::LostGrantFound | Sighting::FoundApplied => config.losses > 0,
            Sighting::LateSwapRefused
            | Sighting::GrantedAfterExpiry
            | Sighting::GrantedAfterRelease
            | Sighting::LoserRefused
            | Sighting::HeldRefused
            | Sighting::SecondReleaseRefused => true,
        }
    }
}

/// How often each sighting was made.
#[derive(Debug, Default)]
pub struct Sightings([Seen; SIGHTINGS]);

#[derive(Debug, Default)]
struct Seen {
    times: AtomicU64,
    told: AtomicBool,
}

impl Sightings {
    pub fn note(&self, sighting: Sighting) {
        self.0[sighting as usize].times.fetch_add(1, Ordering::Relaxed);
    }

    pub fn times(&self, sighting: Sighting) -> u64 {
        self.0[sighting as usize].times.load(Ordering::Relaxed)
    }

    fn is_told(&self, sighting: Sighting) -> bool {
        self.0[sighting as usize].told.load(Ordering::Relaxed)
    }

    /// True once: the checker copies a path at every "yes", and one is enough.
    fn is_news(&self, index: usize) -> bool {
        let seen = &self.0[index];
        seen.times.load(Ordering::Relaxed) > 0
            && !seen.told.load(Ordering::Relaxed)
            && !seen.told.swap(true, Ordering::Relaxed)
    }
}

/// The checker's properties for a configuration. It asks for them ever so often: what has been met needs no asking.
pub fn properties(config: &Config, sightings: &Sightings) -> Vec<Property<LeaseModel>> {
    let mut all: Vec<_> =
        PROMISES.iter().map(|(promise, name, _)| Property::always(name, CONDITIONS[*promise as usize])).collect();
    let wanted = Sighting::all().filter(|s| s.within_reach(config) && !sightings.is_told(*s));
    all.extend(wanted.map(|s| Property::sometimes(s.name(), MET[s as usize])));
    all
}

type Condition = fn(&LeaseModel, &World) -> bool;

fn kept<const INDEX: u32>(_: &LeaseModel, world: &World) -> bool {
    world.broken & (1 << INDEX) == 0
}

fn met<const INDEX: usize>(model: &LeaseModel, _: &World) -> bool {
    model.sightings.is_news(INDEX)
}

// The checker takes plain function pointers, so there is one instance of each function per promise.
const CONDITIONS: [Condition; 21] = [
    kept::<0>, kept::<1>, kept::<2>, kept::<3>, kept::<4>, kept::<5>, kept::<6>, kept::<7>, kept::<8>, kept::<9>,
    kept::<10>, kept::<11>, kept::<12>, kept::<13>, kept::<14>, kept::<15>, kept::<16>, kept::<17>, kept::<18>,
    kept::<19>, kept::<20>,
];
const MET: [Condition; SIGHTINGS] = [
    met::<0>, met::<1>, met::<2>, met::<3>, met::<4>, met::<5>, met::<6>, met::<7>, met::<8>, met::<9>, met::<10>,
    met::<11>, met::<12>, met::<13>, met::<14>, met::<15>, met::<16>, met::<17>, met::<18>, met::<19>, met::<20>,
    met::<21>, met::<22>, met::<23>, met::<24>, met::<25>, met::<26>,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_promise_stands_at_its_own_place_and_has_a_twin_of_its_own() {
        let mut twins = Vec::new();
        for (index, (promise, _, twin)) in PROMISES.iter().enumerate() {
            assert_eq!(*promise as usize, index);
            assert!(!twins.contains(&twin.name()));
            twins.push(twin.name());
        }
        assert_eq!(Sighting::all().count(), SIGHTINGS);
    }
}
