//! Fenced pushes by real processes to real remotes: stopped, killed and cut off anywhere, resumed too late.
#![allow(clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;
#[path = "../rig/dice.rs"]
#[allow(dead_code)]
mod dice;
mod faults;
mod field;
mod pusher;
mod races;
mod trap;
mod worker;

use dice::{play, seed};
use field::{Backend, Transport};

fn main() {
    if std::env::args().nth(1).as_deref() == Some("worker") {
        return worker::main();
    }
    let seed = seed();
    let is_long = std::env::var_os("LEASEHOLD_LONG").is_some();
    let mut backends = vec![Backend::Files];
    if field::knows_reftable() {
        backends.push(Backend::Reftable);
    } else {
        println!("skipped: this git has no reftable back end (it came with 2.45)");
    }
    for &backend in &backends {
        let name = format!("every_point_of_the_remote_survives_every_fault_{backend:?}").to_lowercase();
        play(&name, "git", seed, || {
            println!("{backend:?}: {} cells at the remote's points", faults::at_the_remotes_points(backend));
        });
        let name = format!("a_push_that_a_crash_tore_is_not_said_to_have_landed_{backend:?}").to_lowercase();
        play(&name, "git", seed, || faults::torn_by_a_crash(backend));
        let name = format!("the_controls_are_caught_and_ours_is_not_{backend:?}").to_lowercase();
        play(&name, "git", seed, || races::controls(backend));
    }
    play("every_step_of_ours_survives_every_fault", "git", seed, || {
        println!("{} cells at our steps", faults::at_our_steps(Backend::Files));
    });
    for (way, rounds) in [(Transport::File, 200), (Transport::Ssh, 40), (Transport::Http, 40), (Transport::Jgit, 40)] {
        for &backend in backends.iter().filter(|backend| way == Transport::File || **backend == Backend::Files) {
            // Half of the file rounds are on either back end.
            let rounds = rounds / if way == Transport::File { backends.len() as u64 } else { 1 };
            let name = format!("a_stale_push_never_lands_over_{way:?}_{backend:?}").to_lowercase();
            play(&name, "git", seed, || races::zombies(backend, way, if is_long { 20 * rounds } else { rounds }, seed));
        }
    }
}
