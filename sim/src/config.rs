//! Configurations: how much of each thing may happen in one exploration.
//!
//! Promise: the bounds of every exploration are here, as data. Non-promise: nothing is claimed beyond them.

use leasehold_core::guard::Policy;

/// The kinds of orders an operator may give.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OrderKind {
    /// Take it away.
    Revoke,
    /// Give it to another.
    HandOff,
    /// Ask the holder to finish.
    Drain,
    /// Keep new holders out.
    Pause,
    /// Let them in again.
    Resume,
    /// Move the epoch past what the guards have seen.
    Advance,
}

/// The bounds of one exploration.
#[derive(Debug, Clone)]
pub struct Config {
    /// As the table names it.
    pub name: &'static str,
    /// How many clients there are: at most 3.
    pub clients: u8,
    /// Acquisitions by each client, each under a name of its own.
    pub turns: u8,
    /// Orders by the operator.
    pub orders_given: u8,
    /// The kinds of orders that are given.
    pub orders: &'static [OrderKind],
    /// Slots that may be claimed, at most 2; 0 means that leases are taken without one.
    pub slots: u8,
    /// Whether the store may once be restored from a copy taken at any earlier moment.
    pub rollback: bool,
    /// Replies lost or given up on.
    pub losses: u8,
    /// Swaps delivered twice.
    pub copies: u8,
    /// Renewals and checkpoints begun.
    pub renewals: u8,
    /// Swaps under way at once, at most 4.
    pub flights: u8,
    /// Guarded resources, at most 2.
    pub guards: u8,
    /// What each of them admits.
    pub policies: [Policy; 2],
    /// Writes that each grant may send, numbered from 1.
    pub writes: u8,
    /// Transfers that a record remembers.
    pub transfers_kept: usize,
}

impl Config {
    /// Whether some guard has this policy.
    pub fn has_policy(&self, policy: Policy) -> bool {
        self.policies[..usize::from(self.guards)].contains(&policy)
    }

    /// The bounds in one line.
    pub fn summary(&self) -> String {
        let Config { clients, turns, orders_given, slots, losses, copies, renewals, flights, guards, writes, .. } =
            self;
        let mut text = format!(
            "{clients} clients x {turns} acquisitions, {orders_given} orders, {slots} slots, {losses} lost replies, \
             {copies} doubled swaps, {renewals} renewals, {flights} swaps in flight, {guards} guards x {writes} writes"
        );
        if self.rollback {
            text.push_str(", restored once");
        }
        if self.forgets() {
            text.push_str(&format!(", {} transfers kept", self.transfers_kept));
        }
        text
    }

    /// Whether a request may be forgotten by the record before its sender has looked again.
    pub fn forgets(&self) -> bool {
        self.transfers_kept < usize::MAX
    }
}

/// Small enough to be explored at every build, each with one thing in focus.
const BASE: Config = Config {
    name: "base",
    clients: 2,
    turns: 1,
    orders_given: 0,
    orders: &[],
    slots: 0,
    rollback: false,
    losses: 1,
    copies: 1,
    renewals: 1,
    flights: 2,
    guards: 1,
    policies: [Policy::Ordered, Policy::OncePerEpoch],
    writes: 2,
    transfers_kept: usize::MAX,
};

const ALL_ORDERS: &[OrderKind] =
    &[OrderKind::Revoke, OrderKind::HandOff, OrderKind::Pause, OrderKind::Resume, OrderKind::Advance];

/// What a drain is made of.
const DRAINING: &[OrderKind] = &[OrderKind::Drain, OrderKind::HandOff];

/// What it takes to notice that a store went back, and to heal it.
const HEALING: &[OrderKind] = &[OrderKind::Advance];

/// What ends a run from outside.
const EVICTING: &[OrderKind] = &[OrderKind::Revoke, OrderKind::HandOff];

/// The configurations of every test run: together more than ten million states.
pub fn ci() -> Vec<Config> {
    vec![
        Config { name: "faults", clients: 3, losses: 2, renewals: 0, ..BASE },
        Config { name: "renewals", guards: 2, ..BASE },
        Config { name: "operator", orders_given: 2, orders: ALL_ORDERS, renewals: 0, copies: 0, ..BASE },
        Config { name: "drain", orders_given: 2, orders: DRAINING, copies: 0, guards: 0, ..BASE },
        Config { name: "rollback", rollback: true, orders_given: 1, orders: HEALING, renewals: 0, copies: 0, ..BASE },
        Config { name: "slots", turns: 2, slots: 2, renewals: 0, copies: 0, guards: 0, ..BASE },
        Config {
            name: "handed-off",
            slots: 2,
            orders_given: 1,
            orders: EVICTING,
            renewals: 0,
            copies: 0,
            guards: 0,
            ..BASE
        },
        Config { name: "forgetful", clients: 3, renewals: 0, transfers_kept: 1, ..BASE },
    ]
}

/// The larger ones, by flag: together more than sixty million.
pub fn long() -> Vec<Config> {
    vec![
        Config { name: "long-faults", clients: 3, losses: 2, flights: 3, renewals: 0, ..BASE },
        Config { name: "long-renewals", clients: 3, ..BASE },
        Config { name: "long-operator", orders_given: 2, orders: ALL_ORDERS, renewals: 0, ..BASE },
        Config { name: "long-rollback", clients: 3, rollback: true, renewals: 0, ..BASE },
        Config { name: "long-slots", clients: 3, slots: 2, losses: 2, renewals: 0, guards: 0, ..BASE },
    ]
}

/// Small ones in which seeded bugs show within moments: of lost, late and doubled messages.
pub const FAULTS: Config = Config { name: "small-faults", guards: 2, ..BASE };
/// Of an operator's orders.
pub const OPERATOR: Config =
    Config { name: "small-operator", orders_given: 1, orders: ALL_ORDERS, renewals: 0, ..BASE };
/// Of a store that is restored from an old copy.
pub const ROLLBACK: Config = Config {
    name: "small-rollback",
    orders_given: 1,
    orders: HEALING,
    rollback: true,
    renewals: 0,
    copies: 0,
    losses: 0,
    ..BASE
};
/// For requests to drain.
pub const DRAIN: Config =
    Config { name: "small-drain", orders_given: 1, orders: DRAINING, copies: 0, guards: 0, ..BASE };
/// For slots of a schedule.
pub const SLOTS: Config =
    Config { name: "small-slots", turns: 2, slots: 2, renewals: 0, losses: 0, copies: 0, guards: 0, ..BASE };

/// All of the small ones.
pub fn small() -> Vec<Config> {
    vec![FAULTS, OPERATOR, DRAIN, ROLLBACK, SLOTS]
}
