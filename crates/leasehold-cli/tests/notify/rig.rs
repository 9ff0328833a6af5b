//! A receiver, a home whose settings name it, and what the tests ask of them.

pub use crate::common::{Done, Home, On, Running, eventually, is_alive, signal, within};
pub use leasehold_testbed::{Heard, Receiver, Service};
pub use serde_json::Value;
use std::time::Duration;

pub const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
/// For what waits for a claim of a machine that was killed, or for the pause after several failures.
pub const LONG: Duration = Duration::from_secs(90);

pub fn receiver() -> Receiver {
    Receiver::start(Service::Webhooks(SECRET.into()))
}

/// A home with these lines in its settings, and a secret beside them.
pub fn home(settings: &str) -> Home {
    let home = Home::new(On::Sqlite);
    std::fs::write(home.path("leasehold.toml"), settings).unwrap();
    std::fs::write(home.path("secret"), format!("{SECRET}\n")).unwrap();
    home
}

pub fn webhook(receiver: &Receiver, rest: &str) -> String {
    format!(
        "[[notify]]\nname = \"ops\"\nwebhook = \"{}\"\nsecret_file = \"secret\"\n{rest}\n",
        receiver.url("/hook/hunter2")
    )
}

pub fn run(home: &Home, name: &str, command: &str) -> Done {
    home.done(&["run", name, "--", "sh", "-c", command])
}

pub fn run_kept(home: &Home, name: &str, command: &str) -> Done {
    home.done(&["run", name, "--keep-output", "--", "sh", "-c", command])
}

pub fn types(heard: &[Heard]) -> Vec<&str> {
    heard.iter().map(|heard| heard.signal.as_str()).collect()
}

pub fn event(heard: &Heard) -> Value {
    serde_json::from_str(&heard.body).unwrap()
}

#[track_caller]
pub fn all_taken(receiver: &Receiver) {
    assert!(receiver.refused().is_empty(), "{:?}", receiver.refused());
}

/// The name, and nothing that tells how it is reached, in what people see.
#[track_caller]
pub fn hides_the_url(done: &Done) {
    assert!(!done.stderr.contains("hunter2") && !done.stderr.contains(&SECRET[6..]), "{done:?}");
}

pub fn scheduler(home: &Home, file: &str) -> Running {
    home.start(&["schedule", "--file", file])
}

pub fn stop(scheduler: Running) -> Done {
    signal(scheduler.pid(), "TERM");
    scheduler.end().expect(0)
}
