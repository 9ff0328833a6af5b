//! The proxy under fire: real processes, stopped and killed at every step, raced, and fed what no client should send.
#![allow(clippy::unwrap_used)]

mod adopt;
mod hostile;
mod naive;
mod peer;
mod races;
mod rig;
mod steps;
#[allow(dead_code)] // The tests of the binary use the rest.
mod upstream;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.first().map(String::as_str) {
        Some("proxy") => return rig::proxy_main(&args[1..]),
        Some("client") => return rig::client_main(&args[1..]),
        Some("naive") => return naive::main(&args[1..]),
        Some("--list") => return,
        _ => {}
    }
    let only = args.first().filter(|arg| !arg.starts_with('-'));
    let is_skipped = |name: &str| args.windows(2).any(|pair| pair[0] == "--skip" && name.contains(pair[1].as_str()));
    let _server = rig::serve_if_asked();
    let play = |name: &str, test: fn()| {
        if only.is_some_and(|only| !name.contains(only.as_str())) || is_skipped(name) {
            return;
        }
        let begun = std::time::Duration::from_nanos(leasehold_system::clock::now().as_nanos());
        test();
        let took = std::time::Duration::from_nanos(leasehold_system::clock::now().as_nanos()) - begun;
        println!("test {name} ... ok ({:.1} s)", took.as_secs_f64());
    };
    play("no_stale_write_lands_in_races", races::no_stale_write_lands);
    play("the_naive_proxy_is_caught", races::the_naive_proxy_is_caught);
    play("every_step_and_fault_and_transfer", steps::every_case);
    play("a_rolled_back_store_is_told_apart", steps::a_rolled_back_store);
    play("a_running_proxy_follows_an_adoption", adopt::a_running_proxy_follows);
    play("hostile_requests_are_refused", hostile::all);
}
