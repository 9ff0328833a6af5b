//! The narrator: a path in words.
//!
//! Promise: one line per step, what happened and what the store and the guards show after it.
//! Non-promise: for people; its form is not stable.

use crate::actions::{Action, Fate};
use crate::archive::Time;
use crate::ask::{self, Ask, Command};
use crate::model::LeaseModel;
use crate::promises::PROMISES;
use crate::world::{OPERATOR, World};

/// Tells the steps of a path.
pub fn narrate(model: &LeaseModel, steps: &[(Action, World)]) -> String {
    let mut text = String::new();
    let mut told = 0;
    for (number, (action, world)) in steps.iter().enumerate() {
        text.push_str(&format!("{:>3}. {:<58} {}\n", number + 1, describe(*action), scene(model, world)));
        for (promise, name, _) in PROMISES {
            if world.broken & !told & promise.bit() != 0 {
                text.push_str(&format!("     BROKEN: {name}\n"));
            }
        }
        told |= world.broken;
    }
    text
}

fn describe(action: Action) -> String {
    match action {
        Action::Begin { actor, ask, time } => format!("{} {}{}", who(actor), wish(ask), when(ask, time)),
        Action::Look { actor, time: Time::Early } => format!("{} looks again, before the deadline", who(actor)),
        Action::Look { actor, time: Time::Late } => format!("{} looks again, after the deadline", who(actor)),
        Action::Deliver { flight, fate } => {
            let fate = match fate {
                Fate::Answered => "and is answered",
                Fate::AnswerLost => "and the answer is lost",
                Fate::Doubled => "and is answered, and a copy stays under way",
            };
            format!("swap {flight} reaches the store {fate}")
        }
        Action::GiveUp { actor } => format!("{} waits no longer; its swap is still under way", who(actor)),
        Action::Abandon { actor } => format!("{} lets the request go", who(actor)),
        Action::Seal { name, guard } => format!("grant #{name} seals guard {guard}"),
        Action::Write { name, guard, seq } => format!("grant #{name} writes to guard {guard}, seq {seq}"),
        Action::Foreign { guard } => format!("a token of another lease writes to guard {guard}"),
        Action::Copy => "the store is copied".into(),
        Action::Restore => "the store is restored from the copy".into(),
    }
}

fn who(actor: usize) -> String {
    if actor == OPERATOR { "the operator".into() } else { format!("client {}", actor + 1) }
}

fn when(ask: Ask, time: Time) -> &'static str {
    match time {
        Time::Late => ", after the deadline",
        Time::Early if ask.depends_on_time() => ", before any deadline",
        Time::Early => "",
    }
}

fn wish(ask: Ask) -> String {
    match ask {
        Ask::Acquire { name, slot: 0, .. } => format!("acquires as #{name}"),
        Ask::Acquire { name, slot, after } => format!("acquires as #{name} for slot {slot} ({after:?} after failure)"),
        Ask::Renew(title) => format!("renews {}#{}", title.epoch, title.name),
        Ask::Checkpoint(title) => format!("reports progress under {}#{}", title.epoch, title.name),
        Ask::Release(title, end) => format!("releases {}#{} as {end:?}", title.epoch, title.name),
        Ask::Complete(title, end) => format!("completes under {}#{} as {end:?}", title.epoch, title.name),
        Ask::Operate { name, command } => match command {
            Command::Revoke => format!("revokes, order #{name}"),
            Command::HandOff { to } => format!("hands off to #{to}"),
            Command::Drain => format!("asks to finish, order #{name}"),
            Command::Pause => "pauses".into(),
            Command::Resume { .. } => "resumes".into(),
            Command::Advance { past } => format!("advances past {past}, order #{name}"),
        },
    }
}

fn scene(model: &LeaseModel, world: &World) -> String {
    let record = model.archive.record(world.record);
    let mut text = format!("| r{} epoch {}", world.revision, record.epoch);
    match &record.tenure {
        Some(tenure) => text.push_str(&format!(" held by #{}", ask::name(tenure.holder.nonce()))),
        None => text.push_str(" free"),
    }
    if let Some(mark) = record.slot {
        text.push_str(&format!(", slot {} {:?} under {}", mark.slot.0.as_millis(), mark.state, mark.epoch));
    }
    if record.paused.is_some() {
        text.push_str(", paused");
    }
    for flight in world.flights.iter().flatten() {
        text.push_str(&format!(", swap by {} on r{}", who(usize::from(flight.actor)), flight.expected));
    }
    for (name, epoch) in world.tokens.iter().enumerate().filter(|(_, epoch)| **epoch > 0) {
        text.push_str(&format!(", #{name} has token {epoch}"));
    }
    for (guard, fence) in world.fences.iter().enumerate() {
        if let Some(high) = fence.high {
            text.push_str(&format!(", guard {guard} at {}#{} seq {}", high.epoch, high.name, high.seq));
        }
    }
    text
}
